"""What becomes of a call that Redis has lost something of, and of one that the engine ends itself. Pure.

Redis loses data by a flush, a failover, or a deleted entry.

| found by the audit | repeatable | once |
|---|---|---|
| no ledger, though it was published | published again | `unknown`: whether it ran is not known |
| not begun, and its request is lost | `failed`: it was not run | the same |
| begun, its worker silent, and its request is lost | `failed`: it may be requested again | `unknown` |

Each of these outcomes has the code LOST. None of them runs a `once` call a second time.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

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

    def __init__(self) -> None:
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
            if now - since >= CERTAIN_AFTER_SECONDS[loss]:
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


def decide(loss: Loss, request: ToolCallRequested, now_ms: int) -> EnqueueAgain | EndAs | LeaveIt:
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


def ended_unseen(request: ToolCallRequested, wanted: ToolOutcome) -> ToolOutcome:
    """The outcome of a published call that ends as `wanted` and has no ledger."""
    if request.execution_class is ExecutionClass.ONCE:
        return _unknown("Redis lost what it knew of this call before it was given up, so whether it ran is not known")
    if wanted.state is CallState.CANCELLED:
        message = "the user stopped it; whether it had started is not known, and it is harmless to run it again"
        return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, message)
    return _failed("Redis lost what it knew of this call, and no worker answered in time")


def _unknown(message: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.LOST, message)


def _failed(message: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.FAILED, ErrorCode.LOST, message)


def cancelled() -> ToolOutcome:
    """The user stopped the call before it began."""
    return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "the user stopped it before it began")


def expired() -> ToolOutcome:
    """The deadline passed before the call began."""
    return ToolOutcome.failure(CallState.EXPIRED, ErrorCode.TIMEOUT, "no worker started it in time; it was not run")


def silent() -> ToolOutcome:
    """The deadline passed while the call ran, and its worker has not answered."""
    message = "it was started and did not answer in time; it may have taken effect"
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.TIMEOUT, message)


def unreachable(wanted: ToolOutcome) -> ToolOutcome:
    """The ledger of a call that was to end as `wanted` cannot be read."""
    message = "the tool service cannot be reached; whether the call was run is not known"
    if wanted.state is CallState.EXPIRED:
        return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.TIMEOUT, message)
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, message)


def internal_error() -> ToolOutcome:
    """A defect of the engine kept it from ending the call; the log has the traceback."""
    message = "an internal error of the engine; whether the call was run is not known"
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.UNKNOWN_ERROR, message)


def unknown_after_stop() -> ToolOutcome:
    """The user stopped the call while it ran, and its worker has not answered."""
    message = "the user stopped it while it ran, and its server has not said what became of it"
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, message)
