"""What failures and HTTP responses mean: for a tool call, for the session, and in one line for people. Pure.

The SDK turns most HTTP failures into one and the same JSON-RPC error, so responses are classified from their status.
The SDK's error codes decide little, because healthy servers send -32000, -32001 and -32600 too. What counts is whether
the call was sent, whether the connection was lost meanwhile, and the HTTP response.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import httpx2
from anyio import BrokenResourceError, ClosedResourceError
from mcp import MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PARSE_ERROR,
)
from pydantic import ValidationError

from callstream_runtime.long_texts import LOOP_CHARACTERS
from plugins_contract.errors import ErrorCode
from plugins_mcp.mcp.calls import Ambiguous, CallResult, NotSent, Rejected, RetryLater, SendState
from plugins_mcp.mcp.reads import code_of

FAILED_TO_PARSE = "Failed to parse"
"""The start of the SDK's message for an answer that it cannot read, and of ours."""
TRANSPORT_FAILED = -32099
"""The JSON-RPC error code for a request without an answer. It is not shown: `SendState` holds what happened."""

EXPECTED_ERRORS = (
    MCPError,
    OSError,
    TimeoutError,
    httpx2.HTTPError,
    httpx2.StreamError,
    ValidationError,
    # An answer that arrives while the session is being closed.
    ClosedResourceError,
    BrokenResourceError,
)
"""What the SDK raises for a server that is down, slow or broken."""

_UNKNOWN_TOOL = re.compile(
    r"\b(unknown|no such)\b.{0,20}\btool\b|\btool\b.{0,200}\b(not found|unknown|not exist|not available)",
    re.IGNORECASE | re.DOTALL,
)
_LOST_SESSION = re.compile(
    r"\b(no|invalid|unknown|expired|missing)\b.{0,20}\bsession"
    r"|\bsession\b.{0,60}\b(not found|unknown|expired|invalid|terminated)",
    re.IGNORECASE | re.DOTALL,
)
_LOST_STATE = re.compile(r"request.?state\b", re.IGNORECASE)
_STATUS_ONLY = re.compile(r"HTTP (\d{3})")
"""The message of our HTTP client for a response that says nothing but its status."""


MAX_READ = 500
"""Characters of a message of a server in which words are looked for. It may have 32 MB."""


class ServerExitedError(ConnectionError):
    """The child process of a stdio server exited before it could be listed. The text holds its exit code."""

    def __init__(self, exit_code: int) -> None:
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with code {exit_code}"
        super().__init__(f"the server process {how} during the handshake")
        self.exit_code = exit_code


# Exceptions.


def classify_error(error: Exception, send_state: SendState, *, lost: bool) -> CallResult:
    """The result of a call that ended with `error`. `lost`: its connection ended as well."""
    result = _classify(error, send_state, lost=lost)
    if send_state.rounds > 1 and isinstance(result, NotSent | RetryLater):
        # The server had begun the call and asked for input: only the last round was not run.
        return Ambiguous(f"after the server had begun: {result.reason}")
    return result


def _classify(error: Exception, send_state: SendState, *, lost: bool) -> CallResult:
    if send_state.http_result is not None:
        return send_state.http_result
    if not send_state.sent:
        return NotSent(describe_error(error))
    if isinstance(error, ValidationError):
        return Ambiguous("the answer cannot be read: it is not valid MCP")
    if not isinstance(error, MCPError):
        return Ambiguous("internal error after the call was sent")
    if send_state.answered and error.code != HEADER_MISMATCH:
        return Ambiguous(f"the server answered, and then failed to list its tools: {error.message}")
    if lost:
        return Ambiguous("the connection was lost during the call")
    if _made_by_transport(error):
        return Ambiguous(error.message.partition("\n")[0])
    if error.code == MISSING_REQUIRED_CLIENT_CAPABILITY:
        return Rejected(ErrorCode.INPUT_REFUSED, f"the server wants {_wanted(error.data)}, which is not offered to it")
    if send_state.next_round is not None and error.code == INVALID_PARAMS and _is_expired(error):
        message = "the server does not know the state of its question any more, so the answer reached nobody"
        return Rejected(ErrorCode.INPUT_EXPIRED, message)
    code = code_of(send_state.kind, error.code, error.message[:MAX_READ]) if send_state.kind else _error_code(error)
    return Rejected(code, error.message)


def _wanted(data: Any) -> str:
    match data:
        case {"requiredCapabilities": {**names}}:
            return ", ".join(map(str, names))[:MAX_READ]
        case _:
            return "a capability of its client"


def _is_expired(error: MCPError) -> bool:
    match error.data:
        case {"reason": "invalid_request_state"}:
            return True
        case _:
            return _LOST_STATE.search(error.message[:MAX_READ]) is not None


def _made_by_transport(error: MCPError) -> bool:
    """Whether a transport of the SDK made this error because no readable answer came.

    Only the message shows it. A server that sends the same words is treated with the same caution.
    """
    return (error.code == CONNECTION_CLOSED and error.message.startswith("SSE stream")) or (
        error.code == PARSE_ERROR and error.message.startswith(FAILED_TO_PARSE)
    )


def _error_code(error: MCPError) -> ErrorCode:
    unknown_tool = error.code == METHOD_NOT_FOUND or _UNKNOWN_TOOL.search(error.message[:MAX_READ]) is not None
    if unknown_tool and error.code in (METHOD_NOT_FOUND, INVALID_PARAMS):
        return ErrorCode.TOOL_NOT_FOUND
    if error.code == INVALID_PARAMS:
        return ErrorCode.INVALID_ARGUMENTS
    return ErrorCode.TOOL_EXECUTION_FAILED


def leaf_errors(error: BaseException) -> list[BaseException]:
    """The errors in an exception group, which is how the SDK raises most of them, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        inside = cast("tuple[BaseException, ...]", error.exceptions)
        return [leaf for inner in inside for leaf in leaf_errors(inner)]
    return [error]


def is_expected(error: BaseException) -> bool:
    """Whether the server or the network caused the error, rather than a defect of this worker."""
    return all(isinstance(leaf, EXPECTED_ERRORS) for leaf in leaf_errors(error))


def describe_error(error: BaseException) -> str:
    """What went wrong, in one line for people. It may contain secrets of the server: redact it, and cut it then."""
    return "; ".join(dict.fromkeys(_describe(leaf) for leaf in leaf_errors(error)))[:LOOP_CHARACTERS]


def _describe(error: BaseException) -> str:
    match error:
        case MCPError() if status := _STATUS_ONLY.fullmatch(error.message):
            return _describe_status(int(status[1]))
        case MCPError():
            return error.message.partition("\n")[0]  # for an answer that it cannot read the SDK lists every detail
        case httpx2.HTTPStatusError():
            return _describe_status(error.response.status_code)
        case ValidationError():
            return f"the server sent a {error.title} that is not valid MCP"
        case TimeoutError() | httpx2.TimeoutException():
            return "no answer in time"
        case ClosedResourceError() | BrokenResourceError():
            return "the connection was closed"
        case httpx2.TransportError() | httpx2.StreamError() | OSError():
            return str(error) or "the connection failed"
        case _:
            return f"internal error: {error}"


def _describe_status(status: int) -> str:
    match status:
        case 401 | 403:
            return f"HTTP {status}: the server does not accept the credentials: check headers, or MCP_API_KEY"
        case 301 | 302 | 307 | 308 | 404 | 405:
            return f"HTTP {status}: there is no MCP server at this address: check url, or MCP_SERVER_ENDPOINT"
        case _:
            return f"HTTP {status}"


# HTTP responses.


@dataclass(frozen=True)
class HttpAnswer:
    """The parts of a response that decide. `headers` has lower-case names; `body` is read for errors only.

    `in_session`: the request carried a session id, so the server may have forgotten the session.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    in_session: bool = False


def session_lost(answer: HttpAnswer) -> bool:
    """Whether the server does not know our session: it restarted, or the session expired."""
    if not answer.in_session or answer.status not in (400, 404):
        return False
    if answer.status == 404:
        return True
    error = json_rpc_error(answer)
    if error is None:
        return _LOST_SESSION.search(answer.body[:MAX_READ].decode("utf-8", "replace")) is not None
    message = str(error.get("message"))[:MAX_READ]
    return error.get("code") != INVALID_PARAMS and _LOST_SESSION.search(message) is not None


def classify_response(answer: HttpAnswer) -> CallResult | None:
    """The result of a call that this response alone determines; None when its JSON-RPC message decides."""
    status = answer.status
    if status < 400:
        return _classify_accepted(answer)
    if session_lost(answer):
        return NotSent("the server no longer knows the session")
    error = json_rpc_error(answer)
    text = f"HTTP {status}: {error['message']}" if error and error.get("message") else f"HTTP {status}"
    match status:
        case 401 | 403:
            return Rejected(ErrorCode.PERMISSION_DENIED, text)
        case 429 | 503:
            return RetryLater(text, retry_after(answer.headers.get("retry-after"), datetime.now(UTC)))
        case _ if error is not None:
            return None
        case 413:
            return Rejected(ErrorCode.INVALID_ARGUMENTS, f"{text}: the arguments are too large for the server")
        case _ if status >= 500 or status == 408:
            return Ambiguous(text)
        case _:
            return Rejected(ErrorCode.NETWORK_ERROR, f"{text}: the server does not take MCP requests at this address")


def _classify_accepted(answer: HttpAnswer) -> CallResult | None:
    if 300 <= answer.status < 400:
        return Rejected(ErrorCode.NETWORK_ERROR, f"HTTP {answer.status}: redirects to other servers are not followed")
    if answer.status == 202:
        return Ambiguous("the server accepted the call without answering it (HTTP 202)")
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("application/json", "text/event-stream"):
        return None
    return Ambiguous(f"the server answered with {kind or 'no content type'}, which is not MCP")


def json_rpc_error(answer: HttpAnswer) -> dict[str, Any] | None:
    """The `error` of a JSON-RPC response, or None when the body is anything else."""
    if not answer.headers.get("content-type", "").lower().startswith("application/json"):
        return None
    try:
        message: Any = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or "jsonrpc" not in message:
        return None
    error = cast("dict[str, Any]", message).get("error")
    return cast("dict[str, Any]", error) if isinstance(error, dict) else None


def retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds to wait by a Retry-After header, which is a number or a date; None when it says nothing useful."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - now).total_seconds())
    except (ValueError, TypeError):
        return None
