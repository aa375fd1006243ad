"""The result of one tool call, and the state that a transport records while it sends the call.

The result decides whether a call that must not run twice may be sent again. It is a closed union, so that callers match
on types and never on error texts.
"""

from contextvars import ContextVar
from dataclasses import dataclass

from mcp.types import CallToolResult

from plugins_contract.errors import ErrorCode


@dataclass(frozen=True)
class Answered:
    """The server answered with a result, which may say `is_error`."""

    result: CallToolResult


@dataclass(frozen=True)
class NotSent:
    """The server provably did not run the call: it never left, or its session was gone before. Safe to send again.

    `retry_in` is set while the server is unavailable: the seconds until the worker next tries to reach it.
    """

    reason: str
    retry_in: float | None = None


@dataclass(frozen=True)
class RetryLater:
    """The server refused for now (429, 503) without running the call. `after_s` is its Retry-After, in seconds."""

    reason: str
    after_s: float | None = None


@dataclass(frozen=True)
class Rejected:
    """The server refused the call, or the worker knows that it would. Sending it again would not help."""

    code: ErrorCode
    message: str


@dataclass(frozen=True)
class Ambiguous:
    """The call was sent, and it cannot be known whether it took effect."""

    reason: str


@dataclass(frozen=True)
class TimedOut:
    """The call ran out of time. If it was `sent`, a cancellation followed it, and it may have taken effect.

    `quiet_s` is set when the idle timeout ended the call: the seconds without a progress report. Otherwise the total
    timeout ended it.
    """

    sent: bool = True
    quiet_s: float | None = None


CallResult = Answered | NotSent | RetryLater | Rejected | Ambiguous | TimedOut


@dataclass(eq=False, slots=True)
class SendState:
    """What the transport knows about one call. It writes these fields; they are read when the call ends.

    `sent`: at least one byte of the call may have left.
    `rounds`: the number of `tools/call` requests; more than one when the server asked for input.
    `answered`: the server answered, and the SDK then sent another request because of that answer.
    `http_result`: the result that the HTTP response itself determines.
    """

    sent: bool = False
    rounds: int = 0
    answered: bool = False
    http_result: CallResult | None = None


@dataclass(frozen=True, slots=True)
class Outbound:
    """One outgoing message. `send_state` is set for a tool call; `expects_answer` is false for notifications."""

    send_state: SendState | None = None
    expects_answer: bool = True


# Whether a call was sent is decided several tasks away from its caller. The SDK runs each request in a copy of the
# sender's context, so a context variable identifies the call there.
current_call: ContextVar[SendState | None] = ContextVar("current_call", default=None)
"""The call that the current task makes through the SDK."""

_NO_CALL = Outbound()
outbound_message: ContextVar[Outbound] = ContextVar("outbound_message", default=_NO_CALL)
"""The message that the current task is sending to the server."""
