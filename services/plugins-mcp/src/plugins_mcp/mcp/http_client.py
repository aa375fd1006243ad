"""The HTTP client below the SDK's transports: the failure of one request does not affect the others.

An exception from a POST would end the transport's task group and with it every other call of the session. Each failure
of a POST therefore becomes a response to that POST, and what it means for the call is recorded in its `SendState`.
"""

import json
import logging
import ssl
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import h11
import httpx2

from callstream_runtime.long_texts import LOOP_CHARACTERS, reading
from callstream_runtime.unpacking import ACCEPT, MAX_INTERIM, TOO_MANY_INTERIM, unpack_in_steps
from plugins_mcp.mcp.calls import Ambiguous, NotSent, Outbound, SendState, outbound_message
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.error_classification import (
    HttpAnswer,
    classify_response,
    describe_error,
    json_rpc_error,
    session_lost,
)
from plugins_mcp.mcp.json_rpc import refusal

log = logging.getLogger(__name__)

NOISY_LOGGERS = ("httpcore2", "httpx2", "mcp")
"""Below WARNING these loggers write addresses with their keys, session ids and contents: `main` sets WARNING."""

CONNECT_SECONDS = 30.0
KEEP_ALIVE_SECONDS = 2.0
"""Many servers close idle connections after five seconds. A request into a connection that is being closed would have
an unknown outcome, so idle connections are closed here before that."""
NOTIFICATION_TIMEOUT_SECONDS = 15.0
"""How long a notification may wait for its 202. The SDK sends messages in order, so one that hangs blocks all calls."""
TRANSPORT_FAILED = -32099
"""The JSON-RPC error code for a request without an answer. It is not shown: `SendState` holds what happened."""


class _BoundedResponses(h11.Connection):
    """The protocol of httpx2, which discards any number of interim responses."""

    _interim = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.InformationalResponse):
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise h11.RemoteProtocolError(TOO_MANY_INTERIM)
        elif isinstance(event, h11.Response):
            self._interim = 0
        return event


h11.Connection = _BoundedResponses


class TooLargeError(Exception):
    """The response is larger than MAX_ANSWER_BYTES."""


class IsolatingClient(httpx2.AsyncClient):
    """An HTTP client whose POSTs never raise.

    `answers_in_body`: the answer to a call is the body of its POST (Streamable HTTP); otherwise it comes in the event
    stream (SSE). `on_lost` is called when the session has ended.
    """

    def __init__(
        self,
        headers: Mapping[str, str],
        *,
        answers_in_body: bool,
        on_lost: Callable[[], None],
        certificates: ssl.SSLContext | bool = True,
    ) -> None:
        super().__init__(
            verify=certificates,
            headers={**ACCEPT, **headers},
            event_hooks={"response": [unpack_in_steps]},
            # No read timeout: each call has its own, and a quiet event stream is not broken.
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE_SECONDS
            ),
        )
        self._answers_in_body = answers_in_body
        self._on_lost = on_lost

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request. A POST always gets a response: for a failure, a JSON-RPC error made here."""
        if request.method != "POST":
            return await super().send(request, **options)
        outbound = outbound_message.get()
        send_state = outbound.send_state or SendState()
        _prepare(request, send_state, wait_for_answer=outbound.expects_answer and self._answers_in_body)
        try:
            response = await super().send(request, **options)
            return await self._received(request, response, outbound, send_state)
        except TooLargeError:
            send_state.http_result = Ambiguous(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError) as error:
            send_state.http_result = _failure(error, send_state)
        if not self._answers_in_body:
            self._on_lost()
        return _no_answer(request, 502, send_state.http_result.reason)

    async def _received(
        self, request: httpx2.Request, response: httpx2.Response, outbound: Outbound, send_state: SendState
    ) -> httpx2.Response:
        kind = response.headers.get("content-type", "").lower()
        read_here = response.status_code >= 400 or kind.startswith("application/json")
        # A body that breaks off while the SDK reads it would end the session, so it is read to its end here.
        body = await _whole_body(response) if read_here else b""
        answer = HttpAnswer(response.status_code, response.headers, body, "mcp-session-id" in request.headers)
        lost = session_lost(answer)
        if lost or (answer.status >= 400 and not self._answers_in_body):
            self._on_lost()
        if outbound.send_state is not None and (self._answers_in_body or answer.status >= 400):
            send_state.http_result = classify_response(answer)
        if not read_here:
            return response
        if refused := await reading(len(body), refusal, body):
            return _as_error(request, 502, refused.model_dump_json().encode())
        if answer.status >= 400 and (lost or json_rpc_error(answer) is None):
            return _no_answer(request, answer.status, f"HTTP {answer.status}")
        kept = {key: value for key, value in response.headers.items() if key in ("content-type", "mcp-session-id")}
        if len(body) > LOOP_CHARACTERS and answer.status == HTTPStatus.OK:
            # The SDK reads a body in the event loop, and long events in a thread (`transports._Events`).
            kept["content-type"], body = "text/event-stream", b"data: %b\n\n" % b" ".join(body.splitlines())
        return httpx2.Response(answer.status, headers=kept, content=body, request=request)


def _prepare(request: httpx2.Request, send_state: SendState, *, wait_for_answer: bool) -> None:
    """Record when the first byte leaves. A request that no other timeout bounds gets one."""
    if send_state.rounds <= 1:
        send_state.sent = False  # after a redirect: the first address did not take the call

    async def trace(event: str, info: dict[str, Any]) -> None:
        if event.endswith("send_request_headers.started") and getattr(info.get("request"), "method", b"") == b"POST":
            send_state.sent = True

    extensions: dict[str, Any] = {**request.extensions, "trace": trace}
    if not wait_for_answer:
        extensions["timeout"] = {**extensions.get("timeout", {}), "read": NOTIFICATION_TIMEOUT_SECONDS}
    request.extensions = extensions


def _failure(error: Exception, send_state: SendState) -> NotSent | Ambiguous:
    reason = describe_error(error)
    return Ambiguous(reason) if send_state.sent else NotSent(reason)


async def _whole_body(response: httpx2.Response) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise TooLargeError
            chunks.append(chunk)
    finally:
        await response.aclose()
    return b"".join(chunks)


def _no_answer(request: httpx2.Request, status: int, reason: str) -> httpx2.Response:
    error = {"code": TRANSPORT_FAILED, "message": reason}
    return _as_error(request, status, json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode())


def _as_error(request: httpx2.Request, status: int, body: bytes) -> httpx2.Response:
    """A response that the SDK takes for the answer to this request, whatever the id in it is."""
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=body, request=request)
