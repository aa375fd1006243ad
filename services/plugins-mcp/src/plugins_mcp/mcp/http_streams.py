"""The SDK's transports over HTTP, for what is not a direct request: the failure of one does not affect the others.

An exception from a POST would end the transport's task group and with it every other call of the session. Each failure
of a POST therefore becomes a response to that POST, and what it means for the call is recorded in its `SendState`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, cast

import httpx2
from mcp.client import sse, streamable_http
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import sse_within_origin
from mcp.types import DiscoverResult, JSONRPCMessage

from callstream_runtime.long_texts import LOOP_CHARACTERS, reading
from plugins_mcp.mcp.calls import Outbound, SendState, outbound_message
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.dispatcher import Connection, Negotiated, TransportListener, parse_line, refusal, validated
from plugins_mcp.mcp.error_classification import (
    TRANSPORT_FAILED,
    HttpAnswer,
    classify_response,
    json_rpc_error,
    session_lost,
)
from plugins_mcp.mcp.http_client import HttpClient, HttpResponse, http_client
from plugins_mcp.mcp.http_posts import PostDispatcher
from plugins_mcp.mcp.observed_streams import observed
from plugins_mcp.mcp.transport_options import Http, Sse

NOTIFICATION_TIMEOUT_SECONDS = 15.0
"""How long a notification may wait for its 202. The SDK sends messages in order, so one that hangs blocks all calls."""
_KEPT_FIELDS = ("content-type", "mcp-session-id")
"""The fields of a response that the SDK reads, beside where it redirects."""


@asynccontextmanager
async def open_http(
    target: Http | Sse, listener: TransportListener, notification_seconds: float = NOTIFICATION_TIMEOUT_SECONDS
) -> AsyncGenerator[Connection]:
    """The ways to a remote server, open while the context is. A server that is away is noticed at the first request."""
    async with http_client(target) as http:
        below = _Requests(http, listener.lost, notification_seconds, answers_in_body=isinstance(target, Http))

        def direct(negotiated: Negotiated) -> PostDispatcher | None:
            # Older servers keep a session, in whose streams they also send requests: the SDK reads those.
            stateless = isinstance(target, Http) and isinstance(negotiated, DiscoverResult)
            return PostDispatcher(http, target.url, listener) if stateless else None

        async with _streams(target, below) as (reader, writer):
            yield Connection(observed(reader, writer, listener), direct)


@asynccontextmanager
async def _streams(target: Http | Sse, below: "_Requests") -> AsyncGenerator[Any]:
    def client(headers: object = None, timeout: object = None, auth: object = None) -> httpx2.AsyncClient:
        made = httpx2.AsyncClient(transport=below, trust_env=False)
        made.headers.clear()  # what is not the SDK's is the business of `http_client`
        return made

    if isinstance(target, Sse):
        async with sse_client(target.url, httpx_client_factory=client) as streams:
            yield streams
    else:
        async with (
            client() as sending,
            streamable_http_client(target.url, http_client=sending, max_sse_event_size=MAX_ANSWER_BYTES) as streams,
        ):
            yield streams


class _Requests(httpx2.AsyncBaseTransport):
    """Takes the requests of the SDK's transport. A POST always gets a response: for a failure, a JSON-RPC error.

    `answers_in_body`: the answer to a call is the body of its POST (Streamable HTTP); otherwise it comes in the event
    stream (SSE). `on_lost` is called when the session has ended.
    """

    def __init__(
        self, http: HttpClient, on_lost: Callable[[], None], notification_seconds: float, *, answers_in_body: bool
    ) -> None:
        self._http = http
        self._notification_seconds = notification_seconds
        self._on_lost = on_lost
        self._answers_in_body = answers_in_body

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request of the SDK."""
        if request.method != "POST":
            return await self._other(request)
        outbound = outbound_message.get()
        send_state = outbound.send_state or SendState()
        try:
            return await self._post(request, outbound, send_state)
        except httpx2.TransportError as error:
            if not self._answers_in_body:
                self._on_lost()
            return _no_answer(502, str(error))

    async def _other(self, request: httpx2.Request) -> httpx2.Response:
        """Open or close a stream of events. A session whose stream cannot be opened again announces nothing more: it
        counts as lost."""
        in_session = request.method == "GET" and "mcp-session-id" in request.headers
        try:
            response = await self._http.send(request.method, request.url, _fields(request))
        except httpx2.TransportError:
            if in_session:
                self._on_lost()
            raise
        if in_session and response.status == HTTPStatus.NOT_FOUND:
            self._on_lost()
        return _streamed(response)

    async def _post(self, request: httpx2.Request, outbound: Outbound, send_state: SendState) -> httpx2.Response:
        waits = outbound.expects_answer and self._answers_in_body
        seconds = None if waits else self._notification_seconds
        response = await self._http.post(
            request.url, request.content, _fields(request), send_state, read_seconds=seconds
        )
        body = response.body
        answer = HttpAnswer(response.status, response.headers, body, "mcp-session-id" in request.headers)
        lost = session_lost(answer)
        if lost or (answer.status >= 400 and not self._answers_in_body):
            self._on_lost()
        if outbound.send_state is not None and (self._answers_in_body or answer.status >= 400):
            send_state.http_result = classify_response(answer)
        if not response.is_read:
            return _streamed(response)
        if refused := await reading(len(body), refusal, body):
            return _as_error(502, refused.model_dump_json().encode())
        if answer.status >= 400 and (lost or json_rpc_error(answer) is None):
            return _no_answer(answer.status, f"HTTP {answer.status}")
        kept = _kept(response)
        if len(body) > LOOP_CHARACTERS and answer.status == HTTPStatus.OK:
            # The SDK reads a body in the event loop, and long events in a thread (`_Events`).
            kept["content-type"], body = "text/event-stream", b"data: %b\n\n" % b" ".join(body.splitlines())
        return httpx2.Response(answer.status, headers=kept, content=body)


def _fields(request: httpx2.Request) -> dict[str, str]:
    """The header fields that are the SDK's; aiohttp makes those that the connection and the body need."""
    return {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}


def _kept(response: HttpResponse) -> dict[str, str]:
    kept = {name: response.headers[name] for name in _KEPT_FIELDS if name in response.headers}
    # Other redirects change the method of a POST, and `HttpClient` has followed those that keep it.
    if response.status in (301, 302, 303) and "location" in response.headers:
        kept["location"] = response.headers["location"]
    return kept


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: HttpResponse) -> None:
        self._response = response

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._response.parts()

    async def aclose(self) -> None:
        self._response.close()


def _streamed(response: HttpResponse) -> httpx2.Response:
    return httpx2.Response(response.status, headers=_kept(response), stream=_Body(response))


def _no_answer(status: int, reason: str) -> httpx2.Response:
    error = {"code": TRANSPORT_FAILED, "message": reason}
    return _as_error(status, json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode())


def _as_error(status: int, body: bytes) -> httpx2.Response:
    """A response that the SDK takes for the answer to its request, whatever the id in it is."""
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=body)


# The SDK reads each message in the event loop. Where it is long, it is counted and read in a thread instead.


@dataclass(frozen=True, slots=True)
class _Read:
    """What a long event holds; None for what is no message."""

    message: JSONRPCMessage | None


class _MessageAdapter:
    """Takes the place of the SDK's own. An answer that is not valid becomes an error, and so ends its call at once."""

    @staticmethod
    def validate_json(data: "bytes | str | _Read", *, by_name: bool = False) -> JSONRPCMessage:
        if not isinstance(data, _Read):
            return parse_line(_bytes(data)) or validated(data, by_name=by_name)  # which raises what the SDK expects
        if data.message is None:
            raise ValueError("it is not valid JSON-RPC")
        return data.message


class _Events(httpx2.EventSource):
    """Events whose messages, where they are long, are counted and read in a thread."""

    async def __aiter__(self) -> AsyncGenerator[httpx2.ServerSentEvent]:
        async for event in super().__aiter__():
            if event.event == "message" and len(event.data) > LOOP_CHARACTERS:
                data = cast("Any", _Read(await asyncio.to_thread(parse_line, _bytes(event.data))))
                yield replace(event, data=data)
            else:
                yield event


def _bytes(data: bytes | str) -> bytes:
    return data if isinstance(data, bytes) else data.encode(errors="replace")


@asynccontextmanager
async def _events_within_origin(*request: Any, **options: Any) -> AsyncGenerator[httpx2.EventSource]:
    async with sse_within_origin(*request, **options) as source:
        yield _Events(source.response, max_event_size=MAX_ANSWER_BYTES)


for _module in (streamable_http, sse):
    cast("Any", _module).sse_within_origin = _events_within_origin
cast("Any", streamable_http).EventSource = _Events
cast("Any", streamable_http).jsonrpc_message_adapter = _MessageAdapter
cast("Any", sse).types = SimpleNamespace(jsonrpc_message_adapter=_MessageAdapter)
