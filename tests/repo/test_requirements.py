"""The list of promises tells the truth."""

import ast
from functools import cache

from tests.requirements import NOT_YET, PARTS, REQUIREMENTS
from tests.selection import EXHAUSTIVE, PROVED_BY_TEST_ALL, SMOKE, is_exhaustive
from tests.support.processes import ROOT

NAMED = {test for tests in REQUIREMENTS.values() if tests != NOT_YET for test in tests}


@cache
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


def test_every_test_that_is_selected_exists() -> None:
    everything = all_tests()
    files = {test.partition("::")[0] for test in everything}

    assert {each.partition("[")[0] for each in SMOKE} - everything == set()
    assert {each.partition("[")[0] for each in EXHAUSTIVE} - everything - files == set()
    assert PROVED_BY_TEST_ALL.keys() <= NAMED


def test_make_test_proves_every_promise_that_needs_nothing_special() -> None:
    in_make_test = {test for test in NAMED if not is_exhaustive(test)} | {test.partition("[")[0] for test in SMOKE}
    left_out = {
        promise: tests for promise, tests in REQUIREMENTS.items() if tests != NOT_YET and not in_make_test & set(tests)
    }

    assert [promise for promise, tests in left_out.items() if not PROVED_BY_TEST_ALL.keys() & set(tests)] == []
    assert PROVED_BY_TEST_ALL.keys() <= {test for tests in left_out.values() for test in tests}, "make test proves them"


def test_what_has_no_test_says_not_yet() -> None:
    for promise, tests in REQUIREMENTS.items():
        assert tests == NOT_YET if isinstance(tests, str) else tests, promise


def test_every_promise_is_made_once() -> None:
    assert len(REQUIREMENTS) == sum(map(len, PARTS))
