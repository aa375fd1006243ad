"""One tool call, and exactly what is known about it afterwards.

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
