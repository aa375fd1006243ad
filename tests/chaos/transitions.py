"""The steps of a tool turn at which an engine is killed, in their order."""

from dataclasses import dataclass

from tests.chaos.crash_points import ENQUEUED, OFFERED, UNSTORED_END
from tests.chaos.tools import ASKING, SERVER


@dataclass(frozen=True, slots=True)
class Transition:
    """`step` is what `crash_points` calls it. The turn's tool works for `work_ms`, unless it needs approval."""

    name: str
    step: str
    asked: bool = False
    work_ms: int = 500

    @property
    def server(self) -> str:
        return ASKING if self.asked else SERVER


LONG_MS = 5_000
"""A busy engine learns of the start of a shorter call together with its reply, and sends the reply only."""


LATE = ("sent asked", "before SqlParked.park", "after SqlParked.park")
"""Before the approval is given."""
TRANSITIONS = (
    Transition("the user's message is committed, nothing is sent", "after SqlTurns.begin"),
    Transition("the turn has begun", "sent started"),
    Transition("the model speaks for the first time", "in the first reply"),
    Transition("the round is committed, the relay does not have it", "after SqlCalls.add_round"),
    Transition(OFFERED, OFFERED),
    Transition(ENQUEUED, ENQUEUED),
    Transition("the call is queued", "sent queued", work_ms=LONG_MS),
    Transition("the call runs", "sent progress", work_ms=LONG_MS),
    Transition("the reply is there, not committed", "before SqlCalls.add_result"),
    Transition("the result is committed, not sent", "after SqlCalls.add_result"),
    Transition("between two rounds", "before the last reply"),
    Transition("the model speaks for the last time", "in the last reply"),
    Transition("the answer is there, not committed", "before SqlTurns.finish"),
    Transition("the end is committed, not sent", "after SqlTurns.finish"),
    Transition(UNSTORED_END, UNSTORED_END),
    Transition("the turn has ended", "sent done"),
    Transition("a call waits for approval", "sent asked", asked=True),
    Transition("a call waits for approval, the turn is not parked", "before SqlParked.park", asked=True),
    Transition("the turn is parked", "after SqlParked.park", asked=True),
    Transition("the approval is there, not committed", "before SqlApprovals.decide", asked=True),
    Transition("the approval is committed, not sent", "after SqlApprovals.decide", asked=True),
    Transition("the approval is sent", "sent approved", asked=True),
)
