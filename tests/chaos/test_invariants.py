"""The checker can fail: a history with something wrong in it is found out, whatever is wrong."""

from dataclasses import replace

import pytest

from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState
from tests.chaos.history import Call, Entry, History
from tests.chaos.invariants import as_text, check, not_struck
from tests.marks import promise

ENDED = Entry("succeeded", ExecutionClass.ONCE, starts=1, deadline=9_000, started_at=1_000, finished_at=2_000)
GOOD = Call(
    "one", "t-1", ExecutionClass.ONCE, "succeeded", None, ENDED, ("succeeded",), effects=1, has_outbox_row=False
)
AGAIN = replace(GOOD, execution_class=ExecutionClass.REPEATABLE, entry=replace(ENDED, execution_class="repeatable"))


def ended_as(call: Call, state: CallState, **entry: int) -> Call:
    """The call with that end, on which store, ledger and tool agree."""
    assert call.entry is not None
    return replace(call, outcome=state, entry=replace(call.entry, state=state, **entry), finished=(state,))


def rules(call: Call, *, lossy: bool = False) -> set[str]:
    return {finding.rule for finding in check(History({call.correlation_id: call}, ()), redis_lost_data=lossy)}


@pytest.mark.parametrize(
    "call",
    [
        GOOD,
        AGAIN,
        replace(AGAIN, effects=3),
        ended_as(GOOD, CallState.UNKNOWN),
        ended_as(replace(GOOD, effects=0), CallState.UNKNOWN),
        ended_as(replace(GOOD, effects=0), CallState.FAILED),
        ended_as(replace(GOOD, effects=0), CallState.EXPIRED, finished_at=9_500),
        ended_as(AGAIN, CallState.DEAD),
        replace(GOOD, outcome="failed", error="TOOL_NOT_FOUND", entry=None, finished=(), effects=0),
        replace(GOOD, outcome="unknown", error="TIMEOUT", entry=replace(ENDED, finished_at=12_000)),
    ],
    ids=str,
)
def test_an_allowed_history_has_no_findings(call: Call) -> None:
    assert rules(call) == set()


@promise("a checker of every call finds out what must not be, and breaks when a guard is taken out")
@pytest.mark.parametrize(
    ("rule", "call"),
    {
        "no outcome": ("I1", replace(GOOD, outcome=None, has_outbox_row=True)),
        "the ledger has no end": ("I1", replace(GOOD, entry=replace(ENDED, state="started"))),
        "the ledger does not know it": ("I1", replace(GOOD, entry=None)),
        "engine and ledger disagree": ("I1", replace(GOOD, entry=replace(ENDED, state="unknown"))),
        "engine and channel disagree": ("I1", replace(GOOD, finished=("unknown",))),
        "given up before its deadline": ("I1", replace(GOOD, outcome="unknown", error="TIMEOUT")),
        "succeeded without an effect": ("I1", replace(GOOD, effects=0)),
        "not run, and had its effect": ("I1", ended_as(GOOD, CallState.FAILED)),
        "cancelled, and had its effect": ("I1", ended_as(GOOD, CallState.CANCELLED)),
        "refused, and had its effect": (
            "I1",
            replace(GOOD, outcome="failed", error="TOOL_NOT_FOUND", entry=None, finished=()),
        ),
        "two ends": ("I3", replace(GOOD, finished=("succeeded", "succeeded"))),
        "two different ends": ("I3", replace(GOOD, finished=("succeeded", "unknown"))),
        "ended by a stale attempt": (
            "I2",
            replace(AGAIN, entry=replace(ENDED, execution_class="repeatable", starts=2)),
        ),
        "put back by a stale owner": ("I2", replace(GOOD, entry=replace(ENDED, put_back=1))),
        "no end in the channel": ("I3", replace(GOOD, finished=())),
        "two effects": ("I4", replace(GOOD, effects=2)),
        "unknown, and run again": ("I4", ended_as(GOOD, CallState.UNKNOWN, starts=2)),
        "its outbox row is left": ("I8", replace(GOOD, has_outbox_row=True)),
        "open without an outbox row": ("I8", replace(GOOD, outcome=None)),
        "begun after its deadline": ("I9", replace(GOOD, entry=replace(ENDED, started_at=9_001))),
        "expired too early": ("I9", ended_as(replace(GOOD, effects=0), CallState.EXPIRED, finished_at=8_000)),
        "another class": ("I10", replace(GOOD, entry=replace(ENDED, execution_class="repeatable"))),
    }.values(),
    ids=lambda value: str(value)[:60],
)
def test_a_broken_guarantee_is_found(rule: str, call: Call) -> None:
    assert rule in rules(call)


def test_an_effect_without_a_commit_is_found() -> None:
    (finding,) = check(History({}, ("t-9",)))

    assert (finding.rule, finding.call) == ("I1", "t-9")


def test_a_ledger_that_was_wiped_need_not_know_a_call_but_the_engine_must() -> None:
    wiped = replace(GOOD, entry=None, finished=())

    assert rules(wiped, lossy=True) == set()
    assert rules(replace(GOOD, entry=replace(ENDED, put_back=1)), lossy=True) == set()
    assert rules(replace(wiped, outcome=None, has_outbox_row=True), lossy=True) == {"I1"}
    assert rules(replace(wiped, effects=2), lossy=True) == {"I4"}


@promise("a run in which a fault struck nothing is not taken for one that held")
def test_a_fault_that_struck_nothing_is_found() -> None:
    assert as_text(not_struck({"once calls hit": 0, "repeatable calls hit": 3})) == (
        "fault: it never struck: once calls hit: 1 times, such as -",
    )
