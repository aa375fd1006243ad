"""What the ledger scripts answer, as closed unions: match on them."""

from dataclasses import dataclass
from enum import StrEnum

from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState, ToolOutcome


@dataclass(frozen=True, slots=True)
class Queued:
    """ENQUEUE: the request is on the stream; `backlog` requests were there before it."""

    entry: str
    backlog: int


@dataclass(frozen=True, slots=True)
class AlreadyQueued:
    """ENQUEUE: the same request was put there before, and is not finished."""

    entry: str


@dataclass(frozen=True, slots=True)
class AlreadyFinished:
    """ENQUEUE, CANCEL, LOSE: the call has its outcome."""

    outcome: ToolOutcome


@dataclass(frozen=True, slots=True)
class Conflict:
    """ENQUEUE, ADOPT: another request bears this correlation id."""


@dataclass(frozen=True, slots=True)
class Overloaded:
    """ENQUEUE: the backlog is at its limit; nothing was written."""

    backlog: int


Enqueued = Queued | AlreadyQueued | AlreadyFinished | Conflict | Overloaded


@dataclass(frozen=True, slots=True)
class Adopted:
    """ADOPT: it has a ledger, and these are frozen there. START says what is to be done."""

    execution_class: ExecutionClass
    deadline: int


@dataclass(frozen=True, slots=True)
class Run:
    """START: it is ours to run, under this fence; `starts` counts this one."""

    fence: int
    starts: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """START: somebody began it and is gone, and it must not run twice. COMPLETE it as unknown, under this fence."""

    fence: int
    starts: int


@dataclass(frozen=True, slots=True)
class CancelledBefore:
    """START: its cancellation was asked for while somebody ran it who is gone. COMPLETE it as cancelled."""

    fence: int
    starts: int


@dataclass(frozen=True, slots=True)
class Exhausted:
    """START: it was begun as often as is allowed. COMPLETE it as dead."""

    fence: int
    starts: int


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """START, ADOPT: another worker has it, it is finished, or its deadline passed. `why` is for logs."""

    why: str


@dataclass(frozen=True, slots=True)
class NoLedger:
    """START, ADOPT: the ledger does not know this call; nobody can tell what became of it before."""


Started = Run | Abandoned | CancelledBefore | Exhausted | NothingToDo | NoLedger
Adoption = Adopted | Conflict | NoLedger | NothingToDo


@dataclass(frozen=True, slots=True)
class Completed:
    """COMPLETE: written; this was the terminal answer."""


@dataclass(frozen=True, slots=True)
class Stale:
    """COMPLETE, RENEW, PROGRESS, RELEASE: the call belongs to somebody else by now. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """COMPLETE: the call was terminal already."""

    state: CallState


@dataclass(frozen=True, slots=True)
class Renewed:
    """RENEW: the lease runs again from now."""

    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """CANCEL: a worker is at it and was told."""


@dataclass(frozen=True, slots=True)
class CancelledAtOnce:
    """CANCEL: it had not begun and never will."""


@dataclass(frozen=True, slots=True)
class CancelledUnseen:
    """CANCEL: the ledger did not know it. It is ended there as the caller said for this case."""


Cancelled = CancelledAtOnce | CancelledUnseen | CancelRequested | AlreadyFinished


class Loss(StrEnum):
    """AUDIT: what Redis has lost of an open call."""

    MISSING = "MISSING"
    """There is no ledger. Not published yet, or lost; a worker that runs it puts it back."""
    VANISHED = "VANISHED"
    """It had not begun, and its request is out of every worker's reach: it was not run and never will be."""
    STRANDED = "STRANDED"
    """It had begun, its worker is silent, and its request is out of reach of any other."""


@dataclass(frozen=True, slots=True)
class EndedLost:
    """LOSE: written; this was the terminal answer."""


@dataclass(frozen=True, slots=True)
class NotLost:
    """LOSE: it is not as the audit found it. Nothing was written."""


Lost = EndedLost | NotLost | AlreadyFinished
