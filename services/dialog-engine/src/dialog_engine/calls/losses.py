"""What becomes of a call that Redis has lost something of, and of one that the engine ends itself. Pure.

Redis loses data by a flush, a failover, or a deleted entry.

| found by the audit | repeatable | once |
|---|---|---|
| no ledger, though it was published | published again | `unknown`: whether it ran is not known |
| not begun, and its request is lost | `failed`: it was not run | the same |
| begun, its worker silent, and its request is lost | `failed`: it may be requested again | `unknown` |

Each of these outcomes has the code LOST.

| known of a call that is given up | stopped: repeatable | once | overdue: repeatable | once |
|---|---|---|---|---|
| it was not begun | `cancelled` | `cancelled` | `expired` | `expired` |
| it was begun, and its worker is silent | `cancelled` | `unknown` | `failed` | `unknown` |
| it was published, and Redis has lost that | `cancelled` | `unknown` | `failed` | `unknown` |
| nothing: Redis cannot be asked | `cancelled` | `unknown` | `failed` | `unknown` |

An overdue call has the code TIMEOUT, unless its ledger was lost and it is `unknown`; then it is LOST.

None of this runs a `once` call a second time. A repeatable call is never `unknown`: asking for it again does no harm.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from plugins_contract.errors import ErrorCode
from plugins_contract.ledger.replies import Loss
from plugins_contract.messages import ExecutionClass, ToolCallRequested
from plugins_contract.outcomes import CallState, ToolOutcome

CERTAIN_AFTER_SECONDS = {Loss.MISSING: 6.0, Loss.VANISHED: 0.0, Loss.STRANDED: 3.0}
"""For how many seconds a call must have been found lost. A living worker restores the ledger with its next renewal,
within 2.75 s, or 0.3 s after an outage; a call that vanished had no worker."""
GAP_SECONDS = 3.0
"""Audits that are further apart prove nothing: Redis or this process may have been stopped in between."""


class LossDetector:
    """Decides when a call that audits find lost is certainly lost. Times are seconds on any steady clock."""

    def __init__(self, certain_after: Mapping[Loss, float] = CERTAIN_AFTER_SECONDS) -> None:
        self._certain_after = certain_after
        self._found: dict[str, tuple[Loss, float, float]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def audited(
        self, correlation_ids: Sequence[str], lost: Iterable[tuple[str, Loss]], now: float
    ) -> list[tuple[str, Loss]]:
        """Take the result of one audit of these calls: those found `lost`. Returns those that are certainly lost."""
        before = {correlation_id: self._found.pop(correlation_id, None) for correlation_id in correlation_ids}
        certain: list[tuple[str, Loss]] = []
        for correlation_id, loss in lost:
            since = now
            if (known := before.get(correlation_id)) and known[0] is loss and now - known[2] <= GAP_SECONDS:
                since = known[1]
            self._found[correlation_id] = (loss, since, now)
            if now - since >= self._certain_after[loss]:
                certain.append((correlation_id, loss))
        return certain

    def forget(self, correlation_id: str) -> None:
        """Forget what was found of this call."""
        self._found.pop(correlation_id, None)

    def keep(self, waited_for: Container[str]) -> None:
        """Forget all calls but those `waited_for`."""
        self._found = {call: found for call, found in self._found.items() if call in waited_for}

    def clear(self) -> None:
        """Forget everything: Redis did not answer, so no worker could restore a ledger."""
        self._found.clear()


@dataclass(frozen=True, slots=True)
class EnqueueAgain:
    """Publish it again: it may run twice."""


@dataclass(frozen=True, slots=True)
class EndAs:
    """End it with this outcome."""

    outcome: ToolOutcome


@dataclass(frozen=True, slots=True)
class LeaveIt:
    """Do nothing: its deadline has passed, and its wait ends."""


def remedy(loss: Loss, request: ToolCallRequested, now_ms: int) -> EnqueueAgain | EndAs | LeaveIt:
    """What to do with a call that is certainly lost. `now_ms` is Unix milliseconds on the clock of Redis."""
    once = request.execution_class is ExecutionClass.ONCE
    match loss:
        case Loss.MISSING if once:
            return EndAs(_unknown("Redis lost what it knew of this call, so whether it ran is not known"))
        case Loss.MISSING:
            return EnqueueAgain() if now_ms < request.deadline else LeaveIt()
        case Loss.VANISHED:
            return EndAs(_failed("its request vanished from the stream before a worker began it; it was not run"))
        case Loss.STRANDED if once:
            return EndAs(_unknown("its worker was lost while it ran, and its request is gone"))
        case Loss.STRANDED:
            return EndAs(
                _failed("its worker was lost while it ran, and its request is gone; it may be asked for again")
            )


class GivenUp(Enum):
    """Why the engine ends a call itself."""

    STOPPED = auto()
    """The user stopped it."""
    OVERDUE = auto()
    """Its deadline has passed."""


class Known(Enum):
    """What is known of a call that is given up."""

    NOT_BEGUN = auto()
    RUNNING = auto()
    """A worker has begun it, and has not answered."""
    LOST = auto()
    """It was published, and Redis has lost its ledger, or was another server then."""
    NOTHING = auto()
    """Redis cannot be asked."""


_UNCERTAIN = {
    Known.RUNNING: "it was started, and there was no answer in time",
    Known.LOST: "Redis lost what it knew of this call, and no worker answered in time",
    Known.NOTHING: "the tool service cannot be reached, and there was no answer in time",
}


def given_up(why: GivenUp, known: Known, request: ToolCallRequested) -> ToolOutcome:
    """The outcome of a call that the engine ends."""
    stopped = why is GivenUp.STOPPED
    if known is Known.NOT_BEGUN:
        if stopped:
            return _cancelled("the user stopped it before it began")
        return ToolOutcome.failure(CallState.EXPIRED, ErrorCode.TIMEOUT, "no worker started it in time; it was not run")
    reason = f"the user stopped it; {_UNCERTAIN[known]}" if stopped else _UNCERTAIN[known]
    if request.execution_class is ExecutionClass.ONCE:
        code = ErrorCode.OUTCOME_UNKNOWN if stopped else ErrorCode.TIMEOUT
        message = f"{reason}; whether it took effect is not known"
        return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.LOST if known is Known.LOST else code, message)
    message = f"{reason}; it is harmless to run it again"
    return _cancelled(message) if stopped else ToolOutcome.failure(CallState.FAILED, ErrorCode.TIMEOUT, message)


def of_class(request: ToolCallRequested, outcome: ToolOutcome) -> ToolOutcome:
    """`outcome` as this call can have it: a repeatable call is `failed` where another would be `unknown`.

    Such an outcome is read from a ledger whose reply Redis has lost, for one.
    """
    if request.execution_class is ExecutionClass.ONCE or outcome.state is not CallState.UNKNOWN:
        return outcome
    return msgspec.structs.replace(outcome, state=CallState.FAILED)


def _unknown(message: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.LOST, message)


def _failed(message: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.FAILED, ErrorCode.LOST, message)


def _cancelled(message: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, message)


def internal_error() -> ToolOutcome:
    """A defect of the engine kept it from ending the call; the log has the traceback."""
    message = "an internal error of the engine; whether the call was run is not known"
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.UNKNOWN_ERROR, message)
