"""Requests to a stateless server over HTTP: each is one POST, made in the task of its caller.

Servers of 2026-07-28 and later keep no session, so nothing connects one request with another. The SDK's transport
serves older servers as well and passes each request through several tasks and streams, which costs eight times the
processor time (docs/tuning.md). The SDK still negotiates, subscribes to changes, encodes requests and validates
results; the `PostDispatcher` takes the place of its transport below that.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
import anyio
import anyio.abc
import httpx2
from mcp import ClientSession, MCPError
from mcp.shared.dispatcher import (
    CallOptions,
    Dispatcher,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    ProgressFnT,
    coerce_request_id,
)
from mcp.shared.transport_context import TransportContext
from mcp.types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    DiscoverResult,
    Implementation,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCResponse,
)
from pydantic import ValidationError
from yarl import URL

from callstream_runtime.interim_responses import bound_interim_responses
from callstream_runtime.long_texts import reading
from callstream_runtime.unpacking import ACCEPT, unpacked
from plugins_mcp.mcp.calls import Ambiguous, NotSent, SendState, note_request
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.error_classification import FAILED_TO_PARSE, HttpAnswer, classify_response
from plugins_mcp.mcp.http_client import CONNECT_SECONDS, KEEP_ALIVE_SECONDS, TRANSPORT_FAILED, TooLargeError
from plugins_mcp.mcp.json_rpc import encoded_request, progress_of, refusal, validated
from plugins_mcp.mcp.spec import Http
from plugins_mcp.mcp.transports import TransportListener

log = logging.getLogger(__name__)

MAX_REDIRECTS = 20
MAX_HEADER_BYTES = 64 * 1024
"""Of one header field of a response."""
_HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def can_post(target: Http) -> bool:
    """Whether requests go to the server directly. The proxies of the environment are left to the SDK's client."""
    url = httpx2.URL(target.url)
    proxies = getproxies()
    return not (url.scheme in proxies or "all" in proxies) or bool(proxy_bypass(url.host))


@asynccontextmanager
async def posting_session(
    target: Http, discovered: DiscoverResult, client_info: Implementation, listener: TransportListener
) -> AsyncGenerator[ClientSession]:
    """A session with the server of `target` that `discovered` describes. Each of its requests is a POST."""
    bound_interim_responses()
    tracing = aiohttp.TraceConfig()
    tracing.on_request_headers_sent.append(_mark_sent)
    certificates = await asyncio.to_thread(httpx2.create_ssl_context)  # it reads them: 25 ms
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=certificates)
    # Each call has its own time limit, and a quiet event stream is not broken.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    async with aiohttp.ClientSession(
        connector=connector,
        headers={**ACCEPT, **target.headers},
        auto_decompress=False,  # `unpacked` does it in steps
        timeout=timeout,
        trace_configs=[tracing],
        max_field_size=MAX_HEADER_BYTES,
    ) as http:
        dispatcher = PostDispatcher(http, httpx2.URL(target.url), listener)
        async with ClientSession(dispatcher=dispatcher, client_info=client_info) as session:
            session.adopt(discovered)
            yield session


class PostDispatcher(Dispatcher[TransportContext]):
    """Sends requests of the SDK's session; the layer below it in the SDK's architecture.

    What happens to a tool call is recorded in its `SendState`. Cancelling a request closes its connection, which is how
    a stateless server learns of it.
    """

    def __init__(self, http: aiohttp.ClientSession, url: httpx2.URL, listener: TransportListener) -> None:
        self._http = http
        self._url = url
        self._listener = listener
        self._last_id = 0

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs until cancelled. Without a session the server sends no requests and only progress as notifications."""
        task_status.started()
        await anyio.sleep_forever()

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Does nothing: stateless servers take no notifications."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request and return its result.

        Raises:
            MCPError: the server answered with an error, or there is no answer; then the call's `SendState` says more.
        """
        options: CallOptions = opts or {}
        send_state = note_request(method) or SendState()
        request_id = self._last_id = self._last_id + 1
        report = options.get("on_progress")
        headers = {**_HEADERS, **options.get("headers", {})}
        with encoded_request(request_id, method, params, reports=report is not None) as body:
            answer = await self._post(request_id, body, headers, send_state, report)
        if isinstance(answer, JSONRPCError):
            raise MCPError.from_error_data(answer.error)
        await self._listener.result(answer.result)
        return answer.result

    async def _post(
        self,
        request_id: int,
        body: bytes,
        headers: Mapping[str, str],
        send_state: SendState,
        report: ProgressFnT | None,
    ) -> JSONRPCResponse | JSONRPCError:
        url, redirects = self._url, 0
        try:
            while True:
                if send_state.rounds <= 1:
                    send_state.sent = False  # after a redirect: the first address did not take the call
                async with self._http.post(
                    URL(str(url), encoded=True),
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    trace_request_ctx=send_state,
                ) as response:
                    target = redirect_within_server(url, response.status, response.headers.get("Location"))
                    if target is None or redirects == MAX_REDIRECTS:
                        return await _read_answer(response, request_id, send_state, report)
                url, redirects = target, redirects + 1
        except TooLargeError:
            send_state.http_result = Ambiguous(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
        except (aiohttp.ClientError, OSError) as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or "the connection failed"
            send_state.http_result = Ambiguous(reason) if send_state.sent else NotSent(reason)
        raise MCPError(TRANSPORT_FAILED, send_state.http_result.reason)


async def _mark_sent(http: aiohttp.ClientSession, context: SimpleNamespace, _: object) -> None:
    """Record that the first byte is about to leave."""
    context.trace_request_ctx.sent = True


def redirect_within_server(url: httpx2.URL, status: int, location: str | None) -> httpx2.URL | None:
    """Where the response to a POST redirects it, if it may be followed.

    A redirect that is followed keeps the method and leads to the same server or to its HTTPS address: the configured
    header fields and the arguments are for no other.
    """
    if status not in (307, 308) or location is None:
        return None
    try:
        target = url.join(location)
    except httpx2.InvalidURL:
        return None
    same_server = (url.scheme, url.host, url.port) == (target.scheme, target.host, target.port)
    # The default port of a scheme is None.
    becomes_https = url.host == target.host and (url.scheme, url.port) == ("http", None) and target.port is None
    brings_user = bool(target.userinfo) and target.userinfo != url.userinfo
    return target if (same_server or (becomes_https and target.scheme == "https")) and not brings_user else None


async def _read_answer(
    response: aiohttp.ClientResponse, request_id: int, send_state: SendState, report: ProgressFnT | None
) -> JSONRPCResponse | JSONRPCError:
    """The answer in a response. Raises MCPError when there is none, and what `_whole_body` raises."""
    kind = response.headers.get("Content-Type", "").lower()
    readable = response.status >= 400 or kind.startswith("application/json")
    body = await _whole_body(response) if readable else b""
    answer = HttpAnswer(response.status, response.headers, body)
    send_state.http_result = classify_response(answer)
    if send_state.http_result is not None:
        raise MCPError(TRANSPORT_FAILED, f"HTTP {response.status}")
    if not readable:
        return await _read_events(response, request_id, report)
    message = await reading(len(body), _parsed, body)
    if not isinstance(message, JSONRPCResponse | JSONRPCError):
        raise MCPError(PARSE_ERROR, f"{FAILED_TO_PARSE} JSON response")
    if message.id is not None and coerce_request_id(message.id) != request_id:
        raise MCPError(PARSE_ERROR, f"{FAILED_TO_PARSE} JSON response: it answers another request")
    return message


async def _read_events(
    response: aiohttp.ClientResponse, request_id: int, report: ProgressFnT | None
) -> JSONRPCResponse | JSONRPCError:
    """The answer in an event stream; what is reported before it is passed on. Raises MCPError when there is none."""
    stream = httpx2.Response(
        200,
        headers={"Content-Type": "text/event-stream"},
        content=_body(response),
        request=httpx2.Request("POST", str(response.url)),
    )
    try:
        async for event in httpx2.EventSource(stream, max_event_size=MAX_ANSWER_BYTES):
            if event.event != "message" or not event.data:
                continue
            match await reading(len(event.data), _parsed, event.data.encode()):
                case JSONRPCResponse() | JSONRPCError() as message:
                    return message
                case JSONRPCNotification(method="notifications/progress", params=params) if report is not None:
                    progress = progress_of(params)
                    if progress is not None and progress.token == request_id:
                        await report(*progress[1:])
                case None:
                    raise MCPError(PARSE_ERROR, f"{FAILED_TO_PARSE} SSE message")
                case _:
                    pass
    except httpx2.SSEError as error:
        raise MCPError(CONNECTION_CLOSED, f"SSE stream failed: {error}") from error
    except aiohttp.ClientError:
        pass
    raise MCPError(CONNECTION_CLOSED, "SSE stream ended without a response")


def _parsed(data: bytes) -> JSONRPCMessage | None:
    if refused := refusal(data):
        raise MCPError.from_error_data(refused.error)
    try:
        return validated(data)
    except ValidationError:
        return None


def _body(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The parts of the body, unpacked. Raises ClientPayloadError for a body that cannot be."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    return _unpacked(response, encoding) if encoding != "identity" else response.content.iter_any()


async def _unpacked(response: aiohttp.ClientResponse, encoding: str) -> AsyncIterator[bytes]:
    if encoding != "gzip":
        raise aiohttp.ClientPayloadError("the response is compressed as was not asked for")
    try:
        async for part in unpacked(response.content.iter_any()):
            yield part
    except ValueError as error:
        raise aiohttp.ClientPayloadError(str(error)) from error


async def _whole_body(response: aiohttp.ClientResponse) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in _body(response):
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise TooLargeError
        chunks.append(chunk)
    return b"".join(chunks)
