"""What the ledger should answer, as a model of one call without Redis: the crash table, and what losses leave of it."""

from collections.abc import Collection
from dataclasses import dataclass

from plugins_contract.ledger import Delivery, replies
from plugins_contract.ledger.replies import Loss
from plugins_contract.messages import ExecutionClass, ToolCallRequested
from plugins_contract.outcomes import ToolOutcome
from tests.support.ledger import MAX_STARTS, Pending, above


@dataclass
class Ledger:
    """The ledger entry of one call. `base` is when it was published, on the scale of fences; 0: it is unknown."""

    entry: str | None = None
    fence: int = 0
    base: int = 0
    starts: int = 0
    started: bool = False
    cancel_asked: bool = False
    owner: str | None = None
    token: str | None = None
    verdict: replies.Started | None = None


@dataclass
class Group:
    """What the group knows of one entry: whether it stands in the stream, was passed, and who holds it."""

    standing: bool
    passed: bool
    row: Pending | None

    @property
    def owner(self) -> str | None:
        return self.row and self.row.consumer

    @property
    def out_of_reach(self) -> bool:
        return not self.standing or (self.passed and self.row is None)

    def first_delivered_to_other_than(self, consumer: str | None) -> bool:
        """Whether somebody else got it as the first since the group was made."""
        return self.row is not None and self.row.consumer != consumer and self.row.deliveries == 1


@dataclass
class Call:
    """One call as its scripts should have left it."""

    request: ToolCallRequested
    ledger: Ledger | None = None
    outcome: ToolOutcome | None = None
    sent: bool = False
    runs: int = 0
    """How often a worker was allowed to run it, and did not give it back."""

    @property
    def once(self) -> bool:
        return self.request.execution_class is ExecutionClass.ONCE

    @property
    def open(self) -> Ledger | None:
        """Its ledger, while it has not ended."""
        return None if self.outcome else self.ledger

    def enqueued(self) -> type[replies.Enqueued]:
        if self.outcome:
            return replies.AlreadyFinished
        return replies.AlreadyQueued if self.ledger else replies.Queued

    def cancelled(self) -> type[replies.Cancelled]:
        if self.outcome:
            return replies.AlreadyFinished
        if self.ledger is None:
            return replies.CancelledUnseen
        return replies.CancelRequested if self.ledger.started else replies.CancelledAtOnce

    def begun(self, delivery: Delivery, group: Group) -> replies.Started | None:
        """What START answers; None stands for each kind of NothingToDo."""
        if self.outcome:
            return None
        if self.ledger is None:
            return replies.NoLedger()
        ledger = self.ledger
        if group.owner != delivery.consumer:
            return None
        if delivery.token == ledger.token:
            return ledger.verdict
        if delivery.entry != ledger.entry or self.goes_back(group):
            return None
        fence = above(ledger.fence)
        if ledger.started and self.once:
            return replies.Abandoned(fence, ledger.starts)
        if ledger.cancel_asked:
            return replies.CancelledBefore(fence, ledger.starts)
        if ledger.starts >= MAX_STARTS:
            return replies.Exhausted(fence, ledger.starts)
        return replies.Run(fence, ledger.starts + 1)

    def goes_back(self, group: Group) -> bool:
        """Whether a START hands the entry to the worker that runs the call. All leases here are young."""
        return bool(self.ledger and self.ledger.started and group.first_delivered_to_other_than(self.ledger.owner))

    def speaks(self, fence: int) -> bool:
        """Whether who holds this fence may write."""
        if self.outcome:
            return False
        if self.ledger is None or fence >= self.ledger.fence:
            return True
        return not self.ledger.started and 0 < fence <= self.ledger.base

    def renewable(self, delivery: Delivery, fence: int, group: Group) -> bool:
        others = group.owner not in (None, delivery.consumer)
        return self.speaks(fence) and (not others or group.first_delivered_to_other_than(delivery.consumer))

    def put_back(self, delivery: Delivery, fence: int) -> None:
        """What RENEW makes of a ledger that knows less than who runs the call."""
        ledger = self.ledger = self.ledger or Ledger()
        if not (ledger.started and ledger.fence == fence):
            ledger.started, ledger.fence, ledger.entry, ledger.owner = True, fence, delivery.entry, delivery.consumer
            ledger.starts, ledger.token = ledger.starts + 1, delivery.token
            ledger.verdict = replies.Run(fence, ledger.starts)

    def reports(self, fence: int) -> bool:
        return bool(self.open and self.open.started and fence == self.open.fence)

    def releasable(self, delivery: Delivery, fence: int, group: Group) -> bool:
        runs = self.ledger is not None and isinstance(self.ledger.verdict, replies.Run)
        return self.reports(fence) and runs and group.owner == delivery.consumer

    def lost(self, group: Group | None) -> Loss | None:
        """What AUDIT says of it when every worker is silent. `group` is what is known of its entry."""
        if self.outcome:
            return None
        if self.ledger is None:
            return Loss.MISSING
        if group is not None and not group.out_of_reach:
            return None
        return Loss.STRANDED if self.ledger.started else Loss.VANISHED


@dataclass
class Held:
    """A delivery in the hands of a worker, and the fence it was given for it; `blind`: there was no ledger."""

    call: Call
    delivery: Delivery
    fence: int = 0
    runs: bool = False
    blind: bool = False

    def of_any(self, calls: Collection[Call]) -> bool:
        return any(self.call is call for call in calls)
