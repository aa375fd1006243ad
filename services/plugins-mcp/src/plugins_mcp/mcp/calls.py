"""One tool call, exactly what is known about it afterwards, and what that says about the health of its server.

The answer decides whether a call that must not run twice may be sent again, so it is a closed union: a caller matches
on it and nothing is left to the reading of error texts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from mcp.types import CallToolResult

from plugins_contract.errors import ErrorCode


@dataclass(frozen=True)
class Answered:
    """The server answered with a result, which may say `is_error`."""

    result: CallToolResult


@dataclass(frozen=True)
class NotSent:
    """The server provably did not run the call: it never left, or its session was gone before. Safe to send again.

    `retry_in`: the server is in trouble, and is itself tried again after so many seconds.
    """

    reason: str
    retry_in: float | None = None


@dataclass(frozen=True)
class RetryLater:
    """The server refused for now (429, 503) without running the call. `after_s` is its own wish, in seconds."""

    reason: str
    after_s: float | None = None


@dataclass(frozen=True)
class Rejected:
    """The server answered that it does not do this, or we know not to ask. Sending it again would not help."""

    code: ErrorCode
    message: str


@dataclass(frozen=True)
class Ambiguous:
    """Sent, and nobody can tell whether it took effect."""

    reason: str


@dataclass(frozen=True)
class TimedOut:
    """The time given to the call passed. When it was `sent`, a cancellation followed it; it may have taken effect.

    `quiet_s`: it was not the total, but the time it may go without reporting progress.
    """

    sent: bool = True
    quiet_s: float | None = None


CallResult = Answered | NotSent | RetryLater | Rejected | Ambiguous | TimedOut


def redacted(result: CallResult, redact: Callable[[str], str]) -> CallResult:
    """`result` with every text of ours in it redacted; an answer is the tool's own."""
    match result:
        case NotSent(reason) | RetryLater(reason) | Ambiguous(reason):
            return replace(result, reason=redact(reason))
        case Rejected(_, message):
            return replace(result, message=redact(message))
        case Answered() | TimedOut():
            return result


FAIR_SECONDS = 1.0
"""A call that was given less time than this, because it had waited elsewhere, says nothing when it runs out of it."""


@dataclass(frozen=True, slots=True)
class Healthy:
    """It answered, be it with an error."""


@dataclass(frozen=True, slots=True)
class Failing:
    """It did not. `wish`: for how many seconds it wants to be left alone."""

    reason: str
    wish: float | None = None


Evidence = Healthy | Failing | None


def evidence(result: CallResult | None, *, seconds: float, lost: bool) -> Evidence:
    """What `result` says; None for nothing, as when the call was cut off here (also a result of None).

    `seconds` is the time that the server had. `lost`: the connection was lost, which its owner notices by itself, once
    for all the calls that went with it.
    """
    match result:
        case Answered() | Rejected():
            return Healthy()
        case RetryLater(reason, after_s):
            return Failing(reason, after_s)
        case Ambiguous(reason) | NotSent(reason):
            return None if lost else Failing(reason)
        case TimedOut(sent):
            return Failing("no answer in time") if sent and seconds >= FAIR_SECONDS and not lost else None
        case None:
            return None
