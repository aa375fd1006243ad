"""The list of promises tells the truth."""

import ast

from tests.requirements import GROUND, MODELS, NOT_YET, RELIABILITY, REQUIREMENTS, TURNS
from tests.selection import is_exhaustive
from tests.support.processes import ROOT

NAMED = {test for tests in REQUIREMENTS.values() if tests != NOT_YET for test in tests}


def all_tests() -> set[str]:
    """Every test function, named as in the list."""
    folder = ROOT / "tests"
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        f"{path.relative_to(folder)}::{node.name}"
        for path in folder.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, functions) and node.name.startswith("test_")
    }


def test_every_test_that_is_named_exists() -> None:
    assert NAMED - all_tests() == set()


def test_what_has_no_test_says_not_yet() -> None:
    for promise, tests in REQUIREMENTS.items():
        assert tests == NOT_YET if isinstance(tests, str) else tests, promise


def test_every_promise_is_made_once() -> None:
    assert len(REQUIREMENTS) == len(GROUND) + len(RELIABILITY) + len(TURNS) + len(MODELS)
