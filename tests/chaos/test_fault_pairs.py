"""The harness of two faults can fail, and counts only what was hit."""

from dataclasses import replace

import pytest

from tests.chaos.history import Call, History
from tests.chaos.pairs.instance import Instance, Pair
from tests.chaos.pairs.strikes import Fault
from tests.chaos.pairs.verdict import DOUBLE, UNTRUE, WITHOUT_END, of_calls
from tests.marks import promise

CALL = Call("call", "token", "once", "succeeded", None, None, (), 1, has_outbox_row=False)
PAIR = Pair(Fault.ENGINE, Fault.FLUSH)


def found(call: Call, *begun: str, late: tuple[str, ...] = ()) -> list[str]:
    history = History({"call": call} if not late else {}, late)
    return [kind for kind, _ in of_calls(history, {"call": begun}, {call.token: call} if late else {})]


def instance(*open_at: int, held: int | None = None) -> Instance:
    return Instance("sqlite", str(PAIR), "seed", 1.0, [], [], [*open_at], [held, None], 20, 5)


@promise("a checker of every call finds out what must not be, and breaks when a guard is taken out")
@pytest.mark.parametrize(
    ("call", "begun", "kind"),
    [
        (replace(CALL, effects=2), (), DOUBLE),
        (CALL, ("1 started a", "2 started b"), DOUBLE),
        (replace(CALL, effects=0), (), UNTRUE),
        (replace(CALL, outcome="failed"), (), UNTRUE),
        (replace(CALL, outcome=None, has_outbox_row=True), (), WITHOUT_END),
    ],
)
def test_a_broken_guarantee_after_two_faults_is_found(call: Call, begun: tuple[str, ...], kind: str) -> None:
    assert found(call, *begun) == [kind]


def test_a_repeatable_call_may_run_twice_and_an_unknown_one_may_have_run() -> None:
    assert found(replace(CALL, execution_class="repeatable", effects=2), "1 started a", "2 started b") == []
    assert found(replace(CALL, outcome="unknown"), "1 started a") == []


def test_an_effect_that_comes_after_its_pair_was_judged_is_found() -> None:
    assert found(CALL, late=("token",)) == [DOUBLE]
    assert found(replace(CALL, token="other"), late=("token",)) == [UNTRUE]


def test_only_a_pair_that_hits_open_calls_counts() -> None:
    assert instance(3, 2, held=1).counts
    assert not instance(3, 0, held=1).counts
    assert not instance(3, 2, held=0).counts
