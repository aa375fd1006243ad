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
    """ENQUEUE: the same request is on the stream already, and not finished."""

    entry: str


@dataclass(frozen=True, slots=True)
class AlreadyFinished:
    """ENQUEUE, CANCEL, LOSE: the call has an outcome already."""

    outcome: ToolOutcome


@dataclass(frozen=True, slots=True)
class Conflict:
    """ENQUEUE, ADOPT: another request has this correlation id."""


@dataclass(frozen=True, slots=True)
class Overloaded:
    """ENQUEUE: the backlog is at its limit; nothing was written."""

    backlog: int


@dataclass(frozen=True, slots=True)
class Moved:
    """ENQUEUE: nothing is known of the call, which was offered to another incarnation of Redis. Nothing was written."""


Enqueued = Queued | AlreadyQueued | AlreadyFinished | Conflict | Overloaded | Moved


@dataclass(frozen=True, slots=True)
class Adopted:
    """ADOPT: the call has a ledger entry, with these values. START decides what is to be done."""

    execution_class: ExecutionClass
    deadline: int


@dataclass(frozen=True, slots=True)
class Run:
    """START: run the call under this fence. `starts` includes this start."""

    fence: int
    starts: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """START: a worker that is gone had started it, or may have where `starts` is 0, and it must not run twice.

    COMPLETE it as unknown.
    """

    fence: int
    starts: int


@dataclass(frozen=True, slots=True)
class CancelledBefore:
    """START: it was to be cancelled while a worker that is gone ran it. COMPLETE it as cancelled."""

    fence: int
    starts: int


@dataclass(frozen=True, slots=True)
class Exhausted:
    """START: it was started as often as is allowed. COMPLETE it as dead."""

    fence: int
    starts: int


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """START, ADOPT: another worker has the call, it is finished, or its deadline passed. `why` is for logs."""

    why: str


@dataclass(frozen=True, slots=True)
class NoLedger:
    """START, ADOPT: the ledger does not know this call, so it is unknown whether it ran before."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """START: Redis changed its server, and not every worker has reported what it ran there before. Ask again soon."""


Started = Run | Abandoned | CancelledBefore | Exhausted | NothingToDo | NoLedger | NotYet
Adoption = Adopted | Conflict | NoLedger | NothingToDo


@dataclass(frozen=True, slots=True)
class Completed:
    """COMPLETE: written; this was the terminal answer."""


@dataclass(frozen=True, slots=True)
class Stale:
    """COMPLETE, RENEW, PROGRESS, RELEASE: another worker has the call now. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """COMPLETE: the call was terminal already."""

    state: CallState


@dataclass(frozen=True, slots=True)
class Renewed:
    """RENEW: the lease is renewed from now on."""

    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """CANCEL: a worker runs the call; the request to cancel was published to it."""


@dataclass(frozen=True, slots=True)
class CancelledAtOnce:
    """CANCEL: the call had not started and is ended."""


@dataclass(frozen=True, slots=True)
class CancelledUnseen:
    """CANCEL: this server would not know of a start of the call, which is ended with the outcome for this case."""


Cancelled = CancelledAtOnce | CancelledUnseen | CancelRequested | AlreadyFinished


class Loss(StrEnum):
    """AUDIT: what Redis has lost of an open call."""

    MISSING = "MISSING"
    """There is no ledger entry: not published yet, or lost. A worker that runs the call restores it."""
    VANISHED = "VANISHED"
    """It had not started, and no worker can get its request: it was not run and will not be."""
    STRANDED = "STRANDED"
    """It had started, its worker is silent, and no other worker can get its request."""


@dataclass(frozen=True, slots=True)
class EndedLost:
    """LOSE: written; this was the terminal answer."""


@dataclass(frozen=True, slots=True)
class NotLost:
    """LOSE: the state has changed since the audit. Nothing was written."""


Lost = EndedLost | NotLost | AlreadyFinished
