"""The list of promises tells the truth."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.requirements import GROUND, MODELS, NOT_YET, RELIABILITY, REQUIREMENTS, TURNS
from tests.support.processes import ROOT

NAMED = sorted({test for tests in REQUIREMENTS.values() if tests != NOT_YET for test in tests})


@cache
def functions_of(path: Path) -> frozenset[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions))


@pytest.mark.parametrize("named", NAMED, ids=str)
def test_every_test_that_is_named_exists(named: str) -> None:
    file, _, test = named.partition("::")
    path = ROOT / "tests" / file

    assert path.is_file(), f"there is no {file}"
    assert test in functions_of(path), f"{file} has no {test}"


def test_what_has_no_test_says_not_yet() -> None:
    for promise, tests in REQUIREMENTS.items():
        assert tests == "not yet" if isinstance(tests, str) else tests, promise


def test_every_promise_is_made_once() -> None:
    assert len(REQUIREMENTS) == len(GROUND) + len(RELIABILITY) + len(TURNS) + len(MODELS)
