"""What may not be after two faults, and whether it was."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import httpx2

from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState
from tests.chaos.followed import disagreements, engines_at
from tests.chaos.history import Call, History
from tests.chaos.invariants import of_effects
from tests.chaos.pairs.stack import PairStack
from tests.support.replicas import TryAgainError, read
from tests.support.store import quoted
from tests.support.transcript import Transcript

READ_SECONDS = 200.0
AGAIN_SECONDS = 0.3
FINAL = frozenset({"succeeded", "failed", "timeout", "cancelled", "refused", "unknown"})
"""What a call is shown as when it has ended."""
DOUBLE, WITHOUT_END, DIFFERENT, UNTRUE = "doubles", "without end", "told differently", "untrue"
KINDS = (DOUBLE, WITHOUT_END, DIFFERENT, UNTRUE)
"""What may not be. `untrue` is `succeeded` without an effect, or one of a call that is said not to have run."""
Violation = tuple[str, str]
"""Its kind, and the call, turn or session with what does not hold of it."""


def of_calls(
    history: History, begun: Mapping[str, Collection[str]], earlier: Mapping[str, Call]
) -> Iterator[Violation]:
    """What does not hold of these calls. Pure.

    `begun` are the starts of each call that were seen, `earlier` the calls of the pairs before, by token: an effect may
    come late.
    """
    strange = history.strange_effects
    late = [replace(earlier[token], effects=earlier[token].effects + 1) for token in strange if token in earlier]
    for call in [*history.calls.values(), *late]:
        for rule, what in of_effects(call):
            yield DOUBLE if rule == "I4" else UNTRUE, f"{call.correlation_id}: {what}"
        starts = begun.get(call.correlation_id, ())
        if call.execution_class == ExecutionClass.ONCE and len(starts) > 1 and call.effects <= 1:
            yield DOUBLE, f"{call.correlation_id}: a once call was begun more than once: {sorted(starts)}"
        if call.outcome is None:
            yield WITHOUT_END, f"{call.correlation_id}: it has no outcome"
    for token in strange:
        if token not in earlier:
            yield UNTRUE, f"{token}: an effect under a token that was not committed"


@dataclass
class Follower:
    """A client that follows a turn, at whichever of these engines lets it; `failure` is what it cannot understand."""

    turn_id: str
    received: Transcript = field(default_factory=Transcript)
    failure: str = ""

    def follow(self, engines: Sequence[httpx2.Client]) -> None:
        """Read to the end of the turn, or for READ_SECONDS."""
        give_up_at = time.monotonic() + READ_SECONDS
        while self.received.done is None and not self.failure and time.monotonic() < give_up_at:
            for http in engines:
                try:
                    read(http, self.turn_id, self.received, give_up_at=give_up_at)
                except (httpx2.TransportError, TryAgainError):
                    time.sleep(AGAIN_SECONDS)
                except AssertionError as error:
                    self.failure = f"an engine refuses its stream: {error}"
                if self.received.done is not None:
                    return


def told_differently(
    stack: PairStack, history: History, turns: Collection[str], followers: Sequence[Follower]
) -> Iterator[Violation]:
    """What engines, streams, histories and the store say differently of these turns and of those that were followed."""
    live = {follower.turn_id: follower for follower in followers}
    of_these = f"turns WHERE turn_id IN ({quoted({*turns, *live})})"
    rows = stack.store.rows(f"SELECT turn_id, session_id, status FROM {of_these}")  # noqa: S608
    for finding in disagreements(stack.living, [session_id for _, session_id, _ in rows]):
        yield DIFFERENT, f"{finding.call}: {finding.what}"
    outcomes = {call.correlation_id: call.outcome for call in history.calls.values()}
    with engines_at(stack.living) as engines:
        for http in engines:
            for turn_id, session_id, status in rows:
                replayed = Follower(turn_id)
                replayed.follow([http])
                heard = [replayed, *([live[turn_id]] if turn_id in live else [])]
                yield from _of_a_turn(http, turn_id, session_id, status, heard, outcomes)


def _of_a_turn(
    http: httpx2.Client,
    turn_id: str,
    session_id: str,
    status: str,
    heard: Sequence[Follower],
    outcomes: Mapping[str, str | None],
) -> Iterator[Violation]:
    """What one engine says of a turn, and what of it is not what clients have heard or what the store has."""
    turn = http.get(f"/v1/turns/{turn_id}").json()
    if turn["status"] != status:
        yield DIFFERENT, f"{turn_id}: it is {turn['status']}, in the store {status}"
    messages = http.get(f"/v1/sessions/{session_id}/messages").json()["messages"]
    listed = {call["correlationId"]: call["status"] for each in messages for call in each["toolCalls"]}
    for follower in heard:
        received = follower.received
        if received.done is None or received.repeats:
            what = f"its stream ends with {received.done}, repeats {received.repeats} {follower.failure}"
            yield DIFFERENT, f"{turn_id}: {what}"
        # The events of a turn that failed end with it, and some of its calls only afterwards.
        said = {call: shown for call, shown in received.statuses.items() if status != "failed" or shown in FINAL}
        if said != {call: shown for call, shown in listed.items() if status != "failed" or call in said}:
            yield DIFFERENT, f"{turn_id}: its stream says {said}, the history {listed}"
    for call, shown in listed.items():
        stored = outcomes.get(call)
        if shown != stored and {shown, stored} & {CallState.SUCCEEDED, CallState.UNKNOWN, None}:
            yield DIFFERENT, f"{call}: it is shown as {shown}, and stored as {stored}"
