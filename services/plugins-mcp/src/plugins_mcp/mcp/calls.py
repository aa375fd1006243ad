"""One tool call: its result, the state that a transport records while it sends the call, and its requests.

The result decides whether a call that must not run twice may be sent again. It is a closed union, so that callers match
on types and never on error texts.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp import ClientSession, MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import HEADER_MISMATCH, CallToolResult, InputRequiredResult, InputResponses, RequestParamsMeta
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallProgress
from plugins_contract.questions import InputRequired, NextRound
from plugins_contract.reads import ReadKind

if TYPE_CHECKING:
    from plugins_mcp.mcp.dialogue import Dialogue


@dataclass(frozen=True)
class Answered:
    """The server answered with a result, which may say `is_error`.

    `state_lost`: the server had lost what it kept for this owner, and this is the first answer since.
    """

    result: CallToolResult
    state_lost: bool = False


@dataclass(frozen=True)
class InputAsked:
    """The server ended this round of the call with questions that people can be asked."""

    required: InputRequired


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


CallResult = Answered | InputAsked | NotSent | RetryLater | Rejected | Ambiguous | TimedOut


@dataclass(eq=False, slots=True)
class SendState:
    """What the transport knows about one call. It writes these fields; they are read when the call ends.

    `may_ask`, `next_round` and `kind` are those of the request, and are set before the call, with the `dialogue` of one
    that may ask.
    `sent`: at least one byte of the call may have left.
    `rounds`: the number of `tools/call` requests; more than one when the server asked for input.
    `answered`: the server answered, and the SDK then sent another request because of that answer.
    `http_result`: the result that the HTTP response itself determines.
    `asked_in_vain`: its server asked a question in the middle of it, and its producer cannot be asked.
    """

    sent: bool = False
    rounds: int = 0
    answered: bool = False
    http_result: CallResult | None = None
    may_ask: bool = False
    next_round: NextRound | None = None
    kind: ReadKind | None = None
    dialogue: "Dialogue | None" = None
    asked_in_vain: bool = False


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


CALLS = frozenset({"tools/call", "resources/read", "prompts/get", "completion/complete"})
"""The requests that calls and reads are made of."""


def note_request(method: str) -> SendState | None:
    """Record in the current call that the SDK sends a request. Returns the state of a tool call, None for the rest."""
    send_state = current_call.get()
    if send_state is None:
        return None
    if method not in CALLS:
        send_state.answered = True  # during a call the SDK sends another request only because of an answer
        return None
    send_state.rounds += 1
    send_state.answered = False
    return send_state


MAX_PROGRESS_CHARS = 2_000
"""The longest message of one progress notification. A response channel keeps some hundreds of them for each call."""


def valid_progress(progress: float, total: float | None, message: str | None) -> CallProgress | None:
    """The progress report as it is sent on, with a cut message; None when it is not a number that JSON can express."""
    if not math.isfinite(progress):
        return None
    if message is not None and len(message) > MAX_PROGRESS_CHARS:
        message = f"{message[: MAX_PROGRESS_CHARS - 1]}…"
    return CallProgress(progress, total if total is not None and math.isfinite(total) else None, message)


# Its requests.

MAX_INPUT_ROUNDS = 10
"""How often the server may answer that the call is to be sent again with the state that it returned."""
INPUT_PAUSE_SECONDS = 0.1


async def call_in_rounds(
    session: ClientSession,
    tool: str,
    arguments: dict[str, Any],
    report: ProgressFnT,
    meta: RequestParamsMeta | None,
    *,
    list_again: Callable[[], Awaitable[object]],
    state: str | None = None,
    responses: InputResponses | None = None,
) -> CallToolResult | InputRequiredResult:
    """The result of a call, or what its server asks: no question, when it has asked too often for nothing but that the
    call is sent again. `state` and `responses` are what the answers to earlier questions bring.

    `list_again` lists the tools in `session`. Each state is sent once.

    Raises:
        MCPError, ValidationError, RuntimeError: see `ClientSession.call_tool`.
    """

    async def send(state: str | None) -> CallToolResult | InputRequiredResult:
        return await session.call_tool(
            tool,
            arguments,
            progress_callback=report,
            meta=meta,
            input_responses=responses,
            request_state=state,
            allow_input_required=True,
        )

    async def send_with_current_fields(state: str | None) -> CallToolResult | InputRequiredResult:
        try:
            return await send(state)
        except MCPError as mismatch:
            if mismatch.code != HEADER_MISMATCH or session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                raise
            if state is not None:
                raise  # servers run a state again when it is sent again
            try:
                await list_again()  # header fields are made from the schema, which has changed since it was listed
            except (MCPError, ValidationError):
                raise mismatch from None
            return await send(state)

    result = await send_with_current_fields(state)
    for _ in range(MAX_INPUT_ROUNDS):
        if isinstance(result, CallToolResult) or result.input_requests:
            break
        await asyncio.sleep(INPUT_PAUSE_SECONDS)
        state, responses = result.request_state, None
        result = await send_with_current_fields(state)
    return result
