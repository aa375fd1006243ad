"""The steps of a tool turn at which an engine is killed, in their order."""

from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.crash_points import ENQUEUED, OFFERED, UNSTORED_END


class Tool(StrEnum):
    """What the turn is about: tools of the demo server that leave a line in its effect log."""

    FREE = "increment_counter"
    """It runs without approval."""
    ASKED = "delete_everything"
    """It needs approval."""


@dataclass(frozen=True, slots=True)
class Transition:
    """`step` is what `crash_points` calls it. The tool works for `work_seconds`, unless it needs approval."""

    name: str
    step: str
    tool: Tool = Tool.FREE
    work_seconds: float = 0.5


LONG_SECONDS = 5.0
"""A busy engine learns of the start of a shorter call together with its reply, and sends the reply only."""


TRANSITIONS = (
    Transition("the user's message is committed, nothing is sent", "after SqlTurns.begin"),
    Transition("the turn has begun", "sent started"),
    Transition("the model speaks for the first time", "in the first reply"),
    Transition("the round is committed, the relay does not have it", "after SqlCalls.add_round"),
    Transition(OFFERED, OFFERED),
    Transition(ENQUEUED, ENQUEUED),
    Transition("the call is queued", "sent queued", work_seconds=LONG_SECONDS),
    Transition("the call runs", "sent running", work_seconds=LONG_SECONDS),
    Transition("the reply is there, not committed", "before SqlCalls.add_result"),
    Transition("the result is committed, not sent", "after SqlCalls.add_result"),
    Transition("between two rounds", "before the last reply"),
    Transition("the model speaks for the last time", "in the last reply"),
    Transition("the answer is there, not committed", "before SqlTurns.finish"),
    Transition("the end is committed, not sent", "after SqlTurns.finish"),
    Transition(UNSTORED_END, UNSTORED_END),
    Transition("the turn has ended", "sent done"),
    Transition("a call waits for approval", "sent asked", Tool.ASKED),
    Transition("the approval is there, not committed", "before SqlApprovals.decide", Tool.ASKED),
    Transition("the approval is committed, not sent", "after SqlApprovals.decide", Tool.ASKED),
    Transition("the approval is sent", "sent approved", Tool.ASKED),
)
