"""What must hold of a history, whatever died meanwhile. Pure: a history made up by a test is judged as well."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState
from tests.chaos.history import Call, Entry, History

NOT_RUN = frozenset({CallState.FAILED, CallState.CANCELLED, CallState.EXPIRED, CallState.DEAD})
"""What is said of a `once` call that did not take effect. The tools of the harness never fail by themselves."""

NEVER_ASKED_FOR = frozenset({ErrorCode.TOOL_NOT_FOUND, ErrorCode.INVALID_ARGUMENTS, ErrorCode.DISABLED})
"""Errors of calls that the engine answers by itself: Redis never hears of them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be. `rule` names the invariant."""

    rule: str
    what: str
    call: str


def check(history: History, *, redis_lost_data: bool = False) -> list[Finding]:
    """Everything that does not hold of a history that has come to its end.

    With `redis_lost_data` a call may be without ledger entry and channel: what the engine has stored is the truth then.
    """
    found = [
        Finding("I1", "a tool had an effect under a token that was not committed", t) for t in history.strange_effects
    ]
    for call in history.calls.values():
        found += (Finding(rule, what, call.correlation_id) for rule, what in _of_a_call(call, lossy=redis_lost_data))
    return found


def not_struck(times: Mapping[str, int]) -> list[Finding]:
    """A finding for each thing that a fault was meant to strike and never did: such a run shows nothing about it."""
    return [Finding("fault", f"it never struck: {what}", "-") for what, count in times.items() if not count]


def as_text(findings: list[Finding]) -> tuple[str, ...]:
    """Findings as sentences, the same ones counted together."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for finding in findings:
        groups[finding.rule, finding.what].append(finding.call)
    return tuple(f"{rule}: {what}: {len(calls)} times, such as {calls[0]}" for (rule, what), calls in groups.items())


def _of_a_call(call: Call, *, lossy: bool) -> Iterator[tuple[str, str]]:
    if call.outcome is None:
        yield "I1", "a committed call has no terminal state"
    elif call.has_outbox_row:
        yield "I8", "the outbox row of an answered call is still there"
    if call.outcome is None and not call.has_outbox_row:
        yield "I8", "an open call has no outbox row"
    yield from _of_redis(call, lossy=lossy)
    yield from of_effects(call)


def _of_redis(call: Call, *, lossy: bool) -> Iterator[tuple[str, str]]:
    if call.error in NEVER_ASKED_FOR and call.entry is None:
        return
    if call.entry is not None:
        yield from _of_the_ledger(call, call.entry, lossy=lossy)
    elif not lossy:
        yield "I1", "the ledger does not know a committed call"
    if len(call.finished) > 1:
        yield "I3", "a response channel has more than one end"
    elif not call.finished and not lossy:
        yield "I3", "a response channel has no end"
    for state in set(call.finished) - {call.outcome}:
        if not _late(call):
            yield "I1", f"the engine has stored {call.outcome}, the channel says {state}"


def _of_the_ledger(call: Call, entry: Entry, *, lossy: bool) -> Iterator[tuple[str, str]]:
    if not CallState(entry.state).terminal:
        yield "I1", f"the ledger still has {entry.state}"
    elif entry.state != call.outcome and not _late(call):
        yield "I1", f"the engine has stored {call.outcome}, the ledger says {entry.state}"
    if entry.execution_class and entry.execution_class != call.execution_class:
        yield "I10", f"a {call.execution_class} call is {entry.execution_class} in the ledger"
    if entry.put_back and not lossy:
        yield "I2", "a call was put back though Redis had lost nothing of it"
    if 0 < call.attempts < entry.starts:
        yield "I2", "a call was ended by an attempt that was not the last one"
    if call.execution_class == ExecutionClass.ONCE and entry.starts > 1:
        yield "I4", "a once call was begun more than once"
    if entry.started_at > entry.deadline > 0:
        yield "I9", "a call was begun after its deadline"
    if entry.state == CallState.EXPIRED and 0 < entry.finished_at < entry.deadline:
        yield "I9", "a call has expired before its deadline"


def _late(call: Call) -> bool:
    """Whether the call ended after the engine had given it up for its deadline: that is recorded and never spoken."""
    entry = call.entry
    return call.error == ErrorCode.TIMEOUT and entry is not None and entry.finished_at > entry.deadline > 0


def of_effects(call: Call) -> Iterator[tuple[str, str]]:
    """What does not fit together of a call's outcome and its effects: rules, and what does not hold."""
    if call.outcome == CallState.SUCCEEDED and not call.effects:
        yield "I1", "a call succeeded without an effect"
    if call.execution_class != ExecutionClass.ONCE:
        return
    if call.effects > 1:
        yield "I4", "a once call had its effect more than once"
    if call.outcome in NOT_RUN and call.effects:
        yield "I1", f"a once call is {call.outcome} and had its effect"
