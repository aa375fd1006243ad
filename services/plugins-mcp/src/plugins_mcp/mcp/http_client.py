"""The HTTP client below the SDK's transports: one request's failure stays that request's failure.

Left alone, an exception from a POST ends the transport's task group and with it every other call of the session. So
each failure of a POST becomes an answer to that POST, and what is known about it is noted in its flight.
"""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from plugins_mcp.mcp.calls import Ambiguous, NotSent
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.flight import Cargo, Flight, cargo
from plugins_mcp.mcp.http_answers import HttpAnswer, json_rpc_error, judge, session_lost

log = logging.getLogger(__name__)

TALKATIVE_LOGGERS = ("httpcore2", "httpx2", "mcp")
"""Below WARNING these tell addresses with their keys, session ids and contents: wiring keeps them at WARNING."""

CONNECT_SECONDS = 30.0
ONE_WAY_SECONDS = 15.0
"""How long a notification may wait for its 202: the SDK sends them in line, so one that hangs blocks all calls."""
_TRANSPORT_FAILED = -32099
"""Tells the SDK that there is no answer. What it means is in the flight, so the number reaches nobody."""


class _TooLargeError(Exception):
    """The answer is larger than we are willing to hold."""


class IsolatingClient(httpx2.AsyncClient):
    """An HTTP client whose POSTs never raise.

    `answers_follow` is true where the answer to a call is the body of its POST (Streamable HTTP), and false where it
    comes by another way (SSE). `on_lost` is called when the session cannot go on.
    """

    def __init__(self, headers: Mapping[str, str], *, answers_follow: bool, on_lost: Callable[[], None]) -> None:
        super().__init__(
            headers=dict(headers),
            # No read timeout: a call has its own limit, and a quiet event stream is not a broken one.
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
            # Servers close idle connections after some five seconds. Being first avoids sending into a closing one,
            # which would leave us not knowing whether the call was run.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
        )
        self._answers_follow = answers_follow
        self._on_lost = on_lost

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send; a POST is always answered, if need be with a JSON-RPC error of our own."""
        if request.method != "POST":
            return await super().send(request, **options)
        carried = cargo.get()
        flight = carried.flight or Flight()
        _prepare(request, flight, patient=carried.expects_answer and self._answers_follow)
        try:
            response = await super().send(request, **options)
            return await self._received(request, response, carried, flight)
        except _TooLargeError:
            flight.finding = Ambiguous(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError) as error:
            flight.finding = _failure(error, flight)
        except Exception as error:
            log.exception("a request to an MCP server failed in an unforeseen way")
            flight.finding = _failure(error, flight)
        if not self._answers_follow:
            self._on_lost()
        return _no_answer(request, 502, flight.finding.reason)

    async def _received(
        self, request: httpx2.Request, response: httpx2.Response, carried: Cargo, flight: Flight
    ) -> httpx2.Response:
        kind = response.headers.get("content-type", "").lower()
        read_now = response.status_code >= 400 or kind.startswith("application/json")
        # A body that breaks off while the SDK reads it would end the session, so it is read here.
        body = await _whole_body(response) if read_now else b""
        answer = HttpAnswer(response.status_code, response.headers, body, "mcp-session-id" in request.headers)
        lost = session_lost(answer)
        if lost or (answer.status >= 400 and not self._answers_follow):
            self._on_lost()
        if carried.flight is not None and (self._answers_follow or answer.status >= 400):
            flight.finding = judge(answer)
        if not read_now:
            return response
        if answer.status >= 400 and (lost or json_rpc_error(answer) is None):
            return _no_answer(request, answer.status, f"HTTP {answer.status}")
        kept = {key: value for key, value in response.headers.items() if key in ("content-type", "mcp-session-id")}
        return httpx2.Response(answer.status, headers=kept, content=body, request=request)


def _prepare(request: httpx2.Request, flight: Flight, *, patient: bool) -> None:
    """Note when the first byte leaves, and do not wait for ever where nobody else keeps the time."""
    if flight.rounds <= 1:
        flight.sent = False  # a redirect sends again what the first address did not take

    async def trace(event: str, info: dict[str, Any]) -> None:
        if event.endswith("send_request_headers.started") and getattr(info.get("request"), "method", b"") == b"POST":
            flight.sent = True

    extensions: dict[str, Any] = {**request.extensions, "trace": trace}
    if not patient:
        extensions["timeout"] = {**extensions.get("timeout", {}), "read": ONE_WAY_SECONDS}
    request.extensions = extensions


def _failure(error: Exception, flight: Flight) -> NotSent | Ambiguous:
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Ambiguous(reason) if flight.sent else NotSent(reason)


async def _whole_body(response: httpx2.Response) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise _TooLargeError
            chunks.append(chunk)
    finally:
        await response.aclose()
    return b"".join(chunks)


def _no_answer(request: httpx2.Request, status: int, reason: str) -> httpx2.Response:
    error = {"code": _TRANSPORT_FAILED, "message": reason}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=body, request=request)
