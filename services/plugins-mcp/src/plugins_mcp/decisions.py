"""What is to be done after a call came back: the crash table, as pure functions.

| what is known | repeatable | once |
|---|---|---|
| provably not run | run again | run again |
| sent, and no telling | run again | `unknown`, never run again |
| it answered | the answer | the answer |
"""

import random
from dataclasses import dataclass

from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState, ToolOutcome
from plugins_mcp.mcp import Ambiguous, Answered, CallResult, NotSent, Rejected, RetryLater, TimedOut, to_outcome

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Finish:
    """Make the call terminal."""

    outcome: ToolOutcome


@dataclass(frozen=True, slots=True)
class Retry:
    """Run it again after this many seconds."""

    after_seconds: float


@dataclass(frozen=True, slots=True)
class Situation:
    """What a decision depends on besides the result. Times are seconds; `retries` were made already."""

    execution_class: ExecutionClass
    retries: int
    max_retries: int
    seconds_left: float
    result_max_bytes: int


def decide(result: CallResult, now: Situation) -> Finish | Retry:
    """What to do with a call that came back as `result`. Durations and attempts are filled in by the caller."""
    match result:
        case Answered(answer):
            return Finish(to_outcome(answer, max_bytes=now.result_max_bytes))
        case Rejected(code, message):
            return _failed(code, message)
        case NotSent(reason):
            return _retry(now, None) or _failed(ErrorCode.NETWORK_ERROR, f"the MCP server was not reached: {reason}")
        case RetryLater(reason, after):
            return _retry(now, after) or _failed(ErrorCode.NETWORK_ERROR, f"the MCP server refused for now: {reason}")
        case Ambiguous(reason):
            if now.execution_class is ExecutionClass.ONCE:
                return Finish(unknown(f"the connection was lost while it ran: {reason}"))
            return _retry(now, None) or _failed(ErrorCode.NETWORK_ERROR, f"the connection was lost: {reason}")
        case TimedOut(sent):
            return Finish(timed_out(now.execution_class, sent=sent))


def unknown(message: str) -> ToolOutcome:
    """It began, and nobody can tell what became of it."""
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, message)


def timed_out(execution_class: ExecutionClass, *, sent: bool) -> ToolOutcome:
    """Its time is up. What was sent and is not repeatable may have taken effect."""
    if not sent:
        message = "its MCP server was too busy to take it up in time; it was not run"
        return ToolOutcome.failure(CallState.FAILED, ErrorCode.TIMEOUT, message)
    state = CallState.UNKNOWN if execution_class is ExecutionClass.ONCE else CallState.FAILED
    return ToolOutcome.failure(state, ErrorCode.TIMEOUT, "it did not answer in time and was cancelled")


def cancelled(execution_class: ExecutionClass) -> ToolOutcome:
    """It was cancelled while it ran. Servers do not answer a cancelled call: what it had done by then is not known."""
    if execution_class is ExecutionClass.ONCE:
        return unknown("it was cancelled while it ran; whether it took effect before that is not known")
    return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "it was cancelled while it ran")


def _failed(code: ErrorCode, message: str) -> Finish:
    return Finish(ToolOutcome.failure(CallState.FAILED, code, message))


def _retry(now: Situation, wish: float | None) -> Retry | None:
    """A retry, when there is one left and its time comes before the deadline. The server's own wish counts."""
    longest = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**now.retries)
    after = wish if wish is not None else random.uniform(0, longest)
    if now.retries >= now.max_retries or after >= now.seconds_left:
        return None
    return Retry(after)
