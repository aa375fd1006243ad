"""Whether a user received what happened in a turn that was stopped. Pure."""

from collections.abc import Iterator
from typing import Any

from tests.chaos.invariants import Finding
from tests.chaos.model import DONE
from tests.chaos.notes import Noted, What
from tests.chaos.stopping.users import Stopped

LAST = frozenset({"succeeded", "cancelled", "unknown"})
"""What may become of a call here: its tool never fails, and there is time enough."""
SOON_SECONDS = 1.0
"""A tool that ends so soon after Stop may do so before its server has read that it is stopped."""


def judged(turn: Stopped, noted: Noted) -> Iterator[Finding]:
    for what in (*_of_the_turn(turn), *_of_the_text(turn, noted), *turn.problems):
        yield Finding(turn.phase.name, what, turn.order.tag)
    for _, token, step in turn.calls:
        for what in _of_a_call(turn, token, step, noted):
            yield Finding(turn.phase.name, what, token)


def missed(turn: Stopped, noted: Noted) -> int:
    """How many of its calls came to the MCP server when they had been stopped, and went on to their end there."""
    return sum(
        not noted.times(What.CANCELLED, token) and bool(noted.times(What.EFFECT, token))
        for _, token, step in turn.calls
        if step.get("status") == "unknown" and all(at > turn.pressed_at for at in noted.times(What.CALLED, token))
    )


def _of_the_turn(turn: Stopped) -> Iterator[str]:
    reason, again = turn.reason, turn.next_turn
    in_time = not turn.phase.late_ms[1]
    if not turn.pressed_at:
        yield f"Stop was never pressed: the turn ended with {reason}"
    elif reason is None or (reason != "cancelled" and (in_time or reason != "stop")):
        yield f"it ended with {reason}"
    elif turn.answer.get("status") != {"cancelled": "cancelled", "stop": "done"}[reason]:
        yield f"the stop was answered with {turn.answer}"
    if again.reason != "stop" or again.received.text != DONE:
        yield f"the next turn of its session: {again.received}"


def _of_the_text(turn: Stopped, noted: Noted) -> Iterator[str]:
    if not turn.phase.word_ms:
        return
    if not noted.times(What.LEFT, turn.order.tag):
        yield "the model's stream was not closed"
    said, last = turn.said.get(turn.last["messageId"]), turn.last
    if not last["interrupted"]:
        yield "what was said until Stop is not marked as interrupted"
    if not last["content"] or said != last["content"]:
        yield f"received {said!r}, stored {last['content']!r}"


def _of_a_call(turn: Stopped, token: str, step: dict[str, Any], noted: Noted) -> Iterator[str]:
    status, effects = step.get("status"), len(noted.times(What.EFFECT, token))
    called, cancelled = noted.times(What.CALLED, token), noted.times(What.CANCELLED, token)
    if status not in LAST:
        yield f"a call is {status} in the end: {step.get('error')}"
    if effects > 1 or len(called) > 1:
        yield f"a call came {len(called)} times and had {effects} effects"
    if status == "succeeded" and not effects:
        yield "a call succeeded without an effect"
    if status == "cancelled" and effects:
        yield "a call is cancelled and had its effect"
    if turn.phase.held and (called or status != "cancelled"):
        yield f"a call that no worker had begun is {status}, and came {len(called)} times"
    had_it = any(at < turn.pressed_at for at in called)
    ended = any(at < turn.pressed_at + SOON_SECONDS for at in noted.times(What.ENDED, token))
    if had_it and status != "succeeded" and not cancelled and not ended:
        seen = {what.value: round(at - turn.pressed_at, 3) for what in What for at in noted.times(what, token)}
        yield f"the MCP server was not notified that a call is stopped; seconds from Stop: {seen}"
