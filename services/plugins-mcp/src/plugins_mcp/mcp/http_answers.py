"""What an HTTP answer to a tool call means. Pure.

The SDK turns most of these into one and the same JSON-RPC error, so they are read here, where the status still is.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from mcp.types import INVALID_PARAMS

from plugins_contract.errors import ErrorCode
from plugins_mcp.mcp.calls import Ambiguous, CallResult, NotSent, Rejected, RetryLater

_LOST_SESSION = re.compile(
    r"\b(no|invalid|unknown|expired|missing)\b.{0,20}\bsession"
    r"|\bsession\b.{0,60}\b(not found|unknown|expired|invalid|terminated)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class HttpAnswer:
    """The parts of a response that decide. `headers` has lower-case names; `body` is read for errors only."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    in_session: bool = False
    """The request carried a session id, so the server may have forgotten the session."""


def session_lost(answer: HttpAnswer) -> bool:
    """Whether the server says that it does not know our session: it restarted, or let the session expire."""
    if not answer.in_session or answer.status not in (400, 404):
        return False
    if answer.status == 404:
        return True
    error = json_rpc_error(answer)
    if error is None:
        return _LOST_SESSION.search(answer.body[:500].decode("utf-8", "replace")) is not None
    return error.get("code") != INVALID_PARAMS and _LOST_SESSION.search(str(error.get("message"))) is not None


def judge(answer: HttpAnswer) -> CallResult | None:
    """What the answer says about the call by itself, or None when its JSON-RPC message has the say."""
    status = answer.status
    if status < 400:
        return _judge_accepted(answer)
    if session_lost(answer):
        return NotSent("the server no longer knows the session")
    error = json_rpc_error(answer)
    said = f"HTTP {status}: {error['message']}" if error and error.get("message") else f"HTTP {status}"
    match status:
        case 401 | 403:
            return Rejected(ErrorCode.PERMISSION_DENIED, said)
        case 429 | 503:
            return RetryLater(said, retry_after(answer.headers.get("retry-after"), datetime.now(UTC)))
        case _ if error is not None:
            return None
        case 413:
            return Rejected(ErrorCode.INVALID_ARGUMENTS, f"{said}: the arguments are too large for the server")
        case _ if status >= 500 or status == 408:
            return Ambiguous(said)
        case _:
            return Rejected(ErrorCode.NETWORK_ERROR, f"{said}: the server does not take MCP requests at this address")


def _judge_accepted(answer: HttpAnswer) -> CallResult | None:
    if 300 <= answer.status < 400:
        return Rejected(ErrorCode.NETWORK_ERROR, f"HTTP {answer.status}: a redirect to elsewhere is not followed")
    if answer.status == 202:
        return Ambiguous("the server took the call and said that it will not answer it")
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("application/json", "text/event-stream"):
        return None
    return Ambiguous(f"the server answered with {kind or 'no content type'}, which is not MCP")


def json_rpc_error(answer: HttpAnswer) -> dict[str, Any] | None:
    """The `error` of a JSON-RPC answer, or None when the body is anything else."""
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
