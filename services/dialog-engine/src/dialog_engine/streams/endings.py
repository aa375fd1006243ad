"""The outcomes that an engine gives to calls by itself, in words that the model and the user may read. Pure."""

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolOutcome


def cancelled() -> ToolOutcome:
    """The user stopped it in time."""
    return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "the user stopped it before it began")


def expired() -> ToolOutcome:
    """Its deadline passed in time."""
    return ToolOutcome.failure(CallState.EXPIRED, ErrorCode.TIMEOUT, "no worker took it up in time; it was not run")


def silent() -> ToolOutcome:
    """Its deadline passed while it ran, and its worker says nothing."""
    message = "it was begun and did not answer in time; it may have taken effect"
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.TIMEOUT, message)


def unreachable(wanted: ToolOutcome) -> ToolOutcome:
    """Nobody can be asked what became of a call that was to end as `wanted`."""
    message = "the tool service cannot be reached; whether the call was run is not known"
    if wanted.state is CallState.EXPIRED:
        return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.TIMEOUT, message)
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, message)


def unknown_after_stop() -> ToolOutcome:
    """The user stopped it while it ran, and its worker says nothing."""
    message = "the user stopped it while it ran, and its server has not said what became of it"
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, message)
