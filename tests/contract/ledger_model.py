"""What the ledger should answer, as a model of one call without Redis: the crash table in thirty lines."""

from dataclasses import dataclass

from plugins_contract.ledger import Delivery, replies
from plugins_contract.messages import ExecutionClass, ToolCallRequested
from plugins_contract.outcomes import ToolOutcome
from tests.support.ledger import MAX_STARTS


@dataclass
class Call:
    """One call as its scripts should have left it."""

    request: ToolCallRequested
    entry: str | None = None
    fence: int = 0
    starts: int = 0
    started: bool = False
    cancel_asked: bool = False
    token: str | None = None
    verdict: replies.Started | None = None
    outcome: ToolOutcome | None = None

    def enqueued(self) -> type[replies.Enqueued]:
        """What ENQUEUE answers."""
        if self.outcome:
            return replies.AlreadyFinished
        return replies.AlreadyQueued if self.entry else replies.Queued

    def cancelled(self) -> type[replies.Cancelled]:
        """What CANCEL answers."""
        if self.outcome:
            return replies.AlreadyFinished
        return replies.CancelRequested if self.started else replies.CancelledAtOnce

    def begun(self, delivery: Delivery, owner: str | None) -> replies.Started | None:
        """What START answers while `owner` has the entry; None stands for every kind of NothingToDo."""
        if self.outcome or owner != delivery.consumer:
            return None
        if delivery.token == self.token:
            return self.verdict
        if delivery.entry != self.entry:
            return None
        fence = self.fence + 1
        if self.started and self.request.execution_class is ExecutionClass.ONCE:
            return replies.Abandoned(fence, self.starts)
        if self.cancel_asked:
            return replies.CancelledBefore(fence, self.starts)
        if self.starts >= MAX_STARTS:
            return replies.Exhausted(fence, self.starts)
        return replies.Run(fence, self.starts + 1)

    def current(self, fence: int) -> bool:
        """Whether who holds this fence may write."""
        return self.outcome is None and fence == self.fence

    def renewable(self, delivery: Delivery, fence: int, owner: str | None) -> bool:
        """Whether RENEW says yes."""
        return self.started and self.current(fence) and owner in (None, delivery.consumer)

    def releasable(self, delivery: Delivery, fence: int, owner: str | None) -> bool:
        """Whether RELEASE says yes."""
        runs = isinstance(self.verdict, replies.Run)
        return self.started and runs and self.current(fence) and owner == delivery.consumer


@dataclass
class Held:
    """A delivery in the hands of a worker, and the fence it was given for it."""

    call: Call
    delivery: Delivery
    fence: int = 0
