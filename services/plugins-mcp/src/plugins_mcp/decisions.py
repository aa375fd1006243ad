"""What happens to a call after it returned or was interrupted: the crash table, as pure functions.

| what is known | repeatable | once |
|---|---|---|
| provably not run | retried | retried |
| sent, and the outcome is unknown | retried | `unknown`, never run again |
| the server answered | the answer | the answer |

| interrupted by | not sent | sent, repeatable | sent, once |
|---|---|---|---|
| its caller | `cancelled`: it was not run | `cancelled` | `unknown` |
| the loss of its lease, or the end of this worker | released | run again when its lease expires | `unknown` |
"""

import random
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from plugins_contract.errors import ErrorCode
from plugins_contract.ledger.replies import Abandoned, CancelledBefore, Exhausted, NoLedger
from plugins_contract.messages import ExecutionClass, ToolCallRequested
from plugins_contract.outcomes import CallState, ToolOutcome
from plugins_contract.reads import RESOURCE, unusable_uri
from plugins_contract.rights import Access
from plugins_mcp.mcp import (
    Ambiguous,
    Answered,
    CallResult,
    InputAsked,
    NotSent,
    Rejected,
    RetryLater,
    TimedOut,
    to_outcome,
)

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 5.0
MAX_MESSAGE = 4_000
"""Characters of a server's error message that are kept."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Write this outcome, which ends the call."""

    outcome: ToolOutcome


@dataclass(frozen=True, slots=True)
class Retry:
    """Run the call again after this many seconds."""

    after_seconds: float


@dataclass(frozen=True, slots=True)
class Release:
    """RELEASE the call to the group: it was provably not run, so the attempt does not count."""


@dataclass(frozen=True, slots=True)
class LeaveToLease:
    """Leave the call to its lease: it may have run and may run again, so another worker runs it after the expiry."""


class Interruption(Enum):
    """What interrupted a call."""

    CALLER = auto()
    LEASE_LOST = auto()
    """Another worker may run the call by now."""
    WORKER_STOPPING = auto()


@dataclass(frozen=True, slots=True)
class Situation:
    """What a decision depends on besides the result. Times are seconds; `retries` is the number made so far.

    `may_have_run`: an earlier attempt was sent, and its outcome is unknown. `resumes`: it brings a state of the server,
    which is sent once. `reads`: a read, whose answer may be what ended the connection, as one that is too large does.
    `for_last_release`: its engine is of the last release.
    """

    server: str
    execution_class: ExecutionClass
    retries: int
    max_retries: int
    seconds_left: float
    result_max_bytes: int
    may_have_run: bool = False
    resumes: bool = False
    reads: bool = False
    for_last_release: bool = False


UNKNOWN_BEFORE = frozenset({ErrorCode.INPUT_REFUSED, ErrorCode.INPUT_EXPIRED})
"""Codes that an engine of the last release cannot read: it would take their calls for unanswered until their deadline,
and for unknown then."""


def refusal(request: ToolCallRequested, rights: Access | None) -> str | None:
    """Why the sender of the request, or the message that it is for, may not have what it asks for; None if they may."""
    server, tool = request.server, request.tool
    if request.kind and tool.startswith(RESOURCE) and (wrong := unusable_uri(tool.removeprefix(RESOURCE))):
        return wrong
    if rights is not None and not rights.allows(server, tool):
        return f"{request.subject} may not use {server}/{tool} (RIGHTS_FILE)"
    if request.choice and not request.choice.allows(server, tool):
        return f"the message may not use {server}/{tool}: its sender chose others (`tools`)"
    return None


def conclude(result: CallResult, now: Situation) -> Finish | Retry:
    """What to do with a call that returned `result`. The caller fills in the duration and the attempts."""
    match result:
        case Answered(answer, state_lost):
            outcome = to_outcome(answer, max_bytes=now.result_max_bytes)
            return Finish(msgspec.structs.replace(outcome, state_lost=True) if state_lost else outcome)
        case InputAsked(required):
            return Finish(ToolOutcome(CallState.INPUT_REQUIRED, asked=required))
        case Rejected(code, message):
            is_unknown = now.for_last_release and code in UNKNOWN_BEFORE
            return _failed(ErrorCode.TOOL_EXECUTION_FAILED if is_unknown else code, message)
        case NotSent(reason, retry_in):
            return _retry_with_server(now, retry_in) or _unreached(now, f"was not reached: {reason}")
        case RetryLater(reason, after):
            pause = "" if after is None else f"; it asked for a pause of {after:.0f} s"
            again = None if now.resumes else _retry(now, after)
            return again or _unreached(now, f"refused the call for now: {reason}{pause}")
        case Ambiguous(reason):
            if now.execution_class is ExecutionClass.ONCE:
                return Finish(unknown(f"the connection was lost while the call ran: {reason}"))
            again = None if now.reads else _retry(now, None)
            return again or _unreached(now, f"was lost while the call ran: {reason}")
        case TimedOut(sent, quiet_s):
            return Finish(timed_out(now.execution_class, sent=sent or now.may_have_run, quiet_s=quiet_s))


def decide_interrupted(
    by: Interruption, execution_class: ExecutionClass, *, sent: bool
) -> Finish | Release | LeaveToLease:
    """What to do with an interrupted call. `sent`: it may have been sent, in this attempt or an earlier one."""
    if by is Interruption.CALLER:
        return Finish(cancelled(execution_class, sent=sent))
    if not sent:
        return Release()
    if execution_class is ExecutionClass.REPEATABLE:
        return LeaveToLease()
    why = "the worker lost its lease" if by is Interruption.LEASE_LOST else "the worker shut down"
    return Finish(unknown(f"{why} while the call ran, so it was cancelled; it is not known whether it took effect"))


def unknown(message: str) -> ToolOutcome:
    """The call was started, and its outcome cannot be known."""
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, message)


def timed_out(execution_class: ExecutionClass, *, sent: bool, quiet_s: float | None = None) -> ToolOutcome:
    """The call reached its total timeout or its idle timeout (`quiet_s`). If it was sent, it may have taken effect."""
    if not sent:
        message = "its MCP server was too busy to start it in time; it was not run"
        return ToolOutcome.failure(CallState.FAILED, ErrorCode.TIMEOUT, message)
    late = "it did not answer in time" if quiet_s is None else f"it reported no progress for {quiet_s:g} s"
    if execution_class is ExecutionClass.ONCE:
        message = f"{late} and was cancelled; it is not known whether it took effect before that"
        return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.TIMEOUT, message)
    return ToolOutcome.failure(CallState.FAILED, ErrorCode.TIMEOUT, f"{late} and was cancelled")


def expired(why: str) -> ToolOutcome:
    """The deadline passed before the call was started."""
    return ToolOutcome.failure(CallState.EXPIRED, ErrorCode.TIMEOUT, f"{why}; it was not run")


EXPIRED = expired("no worker started it before its deadline")


def cancelled(execution_class: ExecutionClass, *, sent: bool = True) -> ToolOutcome:
    """The caller cancelled the call. Servers do not answer a cancelled call, so its effect so far is not known."""
    if not sent:
        return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "it was cancelled before it ran")
    if execution_class is ExecutionClass.ONCE:
        return unknown("it was cancelled while it ran; it is not known whether it took effect before that")
    message = "it was cancelled while it ran; if it took effect before that, running it again does no harm"
    return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, message)


def without_run(
    answer: Abandoned | CancelledBefore | Exhausted | NoLedger, execution_class: ExecutionClass
) -> tuple[int, int, ToolOutcome, str]:
    """How a call ends that START does not let run: its fence, its starts, the outcome, and why it is a dead letter."""
    match answer:
        case Abandoned(fence, 0):
            message = "Redis lost its latest data, and a worker that may have run this call is gone"
            return fence, 0, unknown(message), ""
        case Abandoned(fence, starts):
            return fence, starts, unknown("the worker that ran it was lost"), ""
        case CancelledBefore(fence, starts):
            # No start counts if the call was released each time, because it was provably not sent.
            return fence, starts, cancelled(execution_class, sent=starts > 0), ""
        case Exhausted(fence, starts):
            message = f"it was started {starts} times, and each time its worker was lost"
            return fence, starts, ToolOutcome.failure(CallState.DEAD, ErrorCode.UNKNOWN_ERROR, message), message
        case NoLedger():
            message = "Redis lost the state of this call, so it is not known whether it ran before; it is not run now"
            state = CallState.UNKNOWN if execution_class is ExecutionClass.ONCE else CallState.FAILED
            return 0, 0, ToolOutcome.failure(state, ErrorCode.LOST, message), message


def _failed(code: ErrorCode, message: str) -> Finish:
    shown = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"
    return Finish(ToolOutcome.failure(CallState.FAILED, code, shown))


def _unreached(now: Situation, what: str) -> Finish:
    return _failed(ErrorCode.NETWORK_ERROR, f"the MCP server {now.server!r} {what}")


def _retry_with_server(now: Situation, retry_in: float | None) -> Retry | None:
    """A retry soon after the next attempt to reach the server; none if that is too late for the caller to wait."""
    if retry_in is None:
        return _retry(now, None)
    if retry_in > LONGEST_BACKOFF_SECONDS:
        return None
    return _retry(now, retry_in + random.uniform(0, FIRST_BACKOFF_SECONDS))


def _retry(now: Situation, retry_after: float | None) -> Retry | None:
    """A retry, if one is left and is due before the deadline. A Retry-After of the server replaces the backoff."""
    longest = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**now.retries)
    after = retry_after if retry_after is not None else random.uniform(0, longest)
    if now.retries >= now.max_retries or after >= now.seconds_left:
        return None
    return Retry(after)
