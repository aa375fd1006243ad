"""What is to be done after a call came back or was cut off: the crash table, as pure functions.

| what is known | repeatable | once |
|---|---|---|
| provably not run | run again | run again |
| sent, and no telling | run again | `unknown`, never run again |
| it answered | the answer | the answer |

| it was cut off by | not sent | sent, repeatable | sent, once |
|---|---|---|---|
| its caller | `cancelled`: it was not run | `cancelled` | `unknown` |
| the loss of its lease, or the end of this worker | given back | left to its lease, and run again | `unknown` |
"""

import random
from dataclasses import dataclass
from enum import Enum, auto

from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState, ToolOutcome
from plugins_mcp.mcp import Ambiguous, Answered, CallResult, NotSent, Rejected, RetryLater, TimedOut, to_outcome

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 5.0
MAX_MESSAGE = 4_000
"""Characters of what a server says when it refuses a call."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Make the call terminal."""

    outcome: ToolOutcome


@dataclass(frozen=True, slots=True)
class Retry:
    """Run it again after this many seconds."""

    after_seconds: float


@dataclass(frozen=True, slots=True)
class GiveBack:
    """It was provably not run: RELEASE it to whoever takes it next, without counting the attempt."""


@dataclass(frozen=True, slots=True)
class Leave:
    """It may have run and may run again: when its lease has run out, another worker does it, and the attempt counts."""


class Cut(Enum):
    """Who cut a call off."""

    CALLER = auto()
    LEASE = auto()
    """Another worker may have it by now."""
    WORKER = auto()
    """This worker is ending."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a decision depends on besides the result. Times are seconds; `retries` were made already.

    `may_have_run`: an earlier attempt was sent, and nobody can tell what became of it.
    """

    server: str
    execution_class: ExecutionClass
    retries: int
    max_retries: int
    seconds_left: float
    result_max_bytes: int
    may_have_run: bool = False


def decide(result: CallResult, now: Situation) -> Finish | Retry:
    """What to do with a call that came back as `result`. Durations and attempts are filled in by the caller."""
    match result:
        case Answered(answer):
            return Finish(to_outcome(answer, max_bytes=now.result_max_bytes))
        case Rejected(code, message):
            return _failed(code, message)
        case NotSent(reason, retry_in):
            return _retry_when_tried(now, retry_in) or _unreached(now, f"was not reached: {reason}")
        case RetryLater(reason, after):
            wish = "" if after is None else f"; it wants to be asked again in {after:.0f} s"
            return _retry(now, after) or _unreached(now, f"refused for now: {reason}{wish}")
        case Ambiguous(reason):
            if now.execution_class is ExecutionClass.ONCE:
                return Finish(unknown(f"the connection was lost while it ran: {reason}"))
            return _retry(now, None) or _unreached(now, f"was lost while it ran: {reason}")
        case TimedOut(sent, quiet_s):
            return Finish(timed_out(now.execution_class, sent=sent or now.may_have_run, quiet_s=quiet_s))


def cut_off(by: Cut, execution_class: ExecutionClass, *, sent: bool) -> Finish | GiveBack | Leave:
    """What to do with a call that was cut off. `sent`: some of it may have left, in this attempt or an earlier one."""
    if by is Cut.CALLER:
        return Finish(cancelled(execution_class, sent=sent))
    if not sent:
        return GiveBack()
    if execution_class is ExecutionClass.REPEATABLE:
        return Leave()
    why = "this worker lost its lease" if by is Cut.LEASE else "its worker ended"
    return Finish(unknown(f"{why} while it ran, and it was cut off; whether it took effect before that is not known"))


def unknown(message: str) -> ToolOutcome:
    """It began, and nobody can tell what became of it."""
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, message)


def timed_out(execution_class: ExecutionClass, *, sent: bool, quiet_s: float | None = None) -> ToolOutcome:
    """Its time is up, or its server was quiet for too long. What was sent may have taken effect."""
    if not sent:
        message = "its MCP server was too busy to take it up in time; it was not run"
        return ToolOutcome.failure(CallState.FAILED, ErrorCode.TIMEOUT, message)
    late = "it did not answer in time" if quiet_s is None else f"it reported no progress for {quiet_s:g} s"
    if execution_class is ExecutionClass.ONCE:
        message = f"{late} and was cancelled; whether it took effect before that is not known"
        return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.TIMEOUT, message)
    return ToolOutcome.failure(CallState.FAILED, ErrorCode.TIMEOUT, f"{late} and was cancelled")


def cancelled(execution_class: ExecutionClass, *, sent: bool = True) -> ToolOutcome:
    """Its caller wants it no more. Servers do not answer a cancelled call: what it had done by then is not known."""
    if not sent:
        return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "it was cancelled before it ran")
    if execution_class is ExecutionClass.ONCE:
        return unknown("it was cancelled while it ran; whether it took effect before that is not known")
    message = "it was cancelled while it ran; if it took effect before that, running it again does no harm"
    return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, message)


def _failed(code: ErrorCode, message: str) -> Finish:
    shown = message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…"
    return Finish(ToolOutcome.failure(CallState.FAILED, code, shown))


def _unreached(now: Situation, what: str) -> Finish:
    return _failed(ErrorCode.NETWORK_ERROR, f"the MCP server {now.server!r} {what}")


def _retry_when_tried(now: Situation, retry_in: float | None) -> Retry | None:
    """A retry soon after the server itself is tried again; none when that is so far off that the caller should know."""
    if retry_in is None:
        return _retry(now, None)
    if retry_in > LONGEST_BACKOFF_SECONDS:
        return None
    return _retry(now, retry_in + random.uniform(0, FIRST_BACKOFF_SECONDS))


def _retry(now: Situation, wish: float | None) -> Retry | None:
    """A retry, when there is one left and its time comes before the deadline. The server's own wish counts."""
    longest = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**now.retries)
    after = wish if wish is not None else random.uniform(0, longest)
    if now.retries >= now.max_retries or after >= now.seconds_left:
        return None
    return Retry(after)
