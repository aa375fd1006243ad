"""Opens the streams to a server, by Streamable HTTP or SSE, and observes both directions."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace, TracebackType
from typing import Any, Protocol, Self, cast

import httpx2
from mcp.client import sse, streamable_http
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import sse_within_origin
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from callstream_runtime.long_texts import LOOP_CHARACTERS
from plugins_mcp.mcp.calls import Outbound, note_request, outbound_message
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.http_client import CONNECT_SECONDS, IsolatingClient
from plugins_mcp.mcp.json_rpc import progress_of, refusal, validated
from plugins_mcp.mcp.spec import Http, Sse


@dataclass(frozen=True, slots=True)
class _Read:
    """What a long event holds; None for what is no message."""

    message: JSONRPCMessage | None


class _MessageAdapter:
    """Takes the place of the SDK's own, with which it reads each answer in the event loop: see `validated`."""

    @staticmethod
    def validate_json(data: "bytes | str | _Read", *, by_name: bool = False) -> JSONRPCMessage:
        if not isinstance(data, _Read):
            return validated(data, by_name=by_name)
        if data.message is None:
            raise ValueError("it is not valid JSON-RPC")
        return data.message


class _Events(httpx2.EventSource):
    """Events whose messages, where they are long, are counted and read in a thread: the SDK reads them in the loop."""

    async def __aiter__(self) -> AsyncGenerator[httpx2.ServerSentEvent]:
        async for event in super().__aiter__():
            if event.event == "message" and len(event.data) > LOOP_CHARACTERS:
                data = cast("Any", _Read(await asyncio.to_thread(_message, event.data)))
                yield replace(event, data=data)
            else:
                yield event


def _message(data: str) -> JSONRPCMessage | None:
    try:
        return refusal(data.encode(errors="replace")) or validated(data)
    except ValueError:
        return None


@asynccontextmanager
async def _events_within_origin(*request: Any, **options: Any) -> AsyncGenerator[httpx2.EventSource]:
    async with sse_within_origin(*request, **options) as source:
        yield _Events(source.response, max_event_size=MAX_ANSWER_BYTES)


for _module in (streamable_http, sse):
    cast("Any", _module).sse_within_origin = _events_within_origin
cast("Any", streamable_http).EventSource = _Events
cast("Any", streamable_http).jsonrpc_message_adapter = _MessageAdapter
cast("Any", sse).types = SimpleNamespace(jsonrpc_message_adapter=_MessageAdapter)


MAX_UNANSWERED = 100
"""The most requests of a server, such as pings, whose answers wait to be written. The SDK has a task for each."""
_POLL_SECONDS = 0.001


async def room_for_request(unanswered: Callable[[], int]) -> None:
    """Wait until fewer than MAX_UNANSWERED answers wait. A server that does not read them is not read meanwhile."""
    while unanswered() >= MAX_UNANSWERED:  # noqa: ASYNC110 -- nothing signals it
        await asyncio.sleep(_POLL_SECONDS)


class TransportListener(Protocol):
    """Takes the events of a transport. Called while messages are read: must not block or raise."""

    def lost(self) -> None:
        """The connection has ended. May be called more than once."""
        ...

    async def result(self, result: dict[str, Any]) -> None:
        """A result arrived that the SDK has not read yet; it may be changed in place."""
        ...


class _Reader(Protocol):
    async def receive(self) -> SessionMessage | Exception: ...
    async def aclose(self) -> None: ...
    async def __anext__(self) -> SessionMessage | Exception: ...


class _Writer(Protocol):
    async def send(self, item: SessionMessage, /) -> None: ...
    async def aclose(self) -> None: ...


class _Closing:
    def __init__(self, inner: _Reader | _Writer) -> None:
        self._closable = inner

    async def aclose(self) -> None:
        await self._closable.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self._closable.aclose()


class ObservedReader(_Closing):
    """Incoming messages. The SDK does not report the end of the stream, so it is observed here.

    Progress that is not valid is left out: the SDK would end the session at a number that is larger than every float.
    """

    def __init__(self, inner: _Reader, listener: TransportListener, writer: "ObservedWriter") -> None:
        super().__init__(inner)
        self._inner = inner
        self._listener = listener
        self._writer = writer

    @property
    def last_context(self) -> Any:
        """The context of the sender of the last message; the SDK runs handlers in it."""
        return getattr(self._inner, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            try:
                item = await self._inner.__anext__()
            except BaseException:
                self._listener.lost()
                raise
            match item:
                case SessionMessage(JSONRPCResponse(result=result)):
                    await self._listener.result(result)
                case SessionMessage(JSONRPCRequest()):
                    await room_for_request(lambda: self._writer.waiting)
                case SessionMessage(JSONRPCNotification(method="notifications/progress", params=params)) if (
                    progress_of(params) is None
                ):
                    continue
                case _:
                    pass
            return item

    async def receive(self) -> SessionMessage | Exception:
        return await self._inner.receive()


class ObservedWriter(_Closing):
    """Outgoing messages, each marked with the call it belongs to. The HTTP client records when it is sent."""

    def __init__(self, inner: _Writer) -> None:
        super().__init__(inner)
        self._inner = inner
        self.waiting = 0
        """How many messages wait to be written."""

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        request = isinstance(message, JSONRPCRequest)
        outbound = Outbound(note_request(message.method)) if request else Outbound(expects_answer=False)
        token = outbound_message.set(outbound)
        self.waiting += 1
        try:
            await self._inner.send(item)
        finally:
            self.waiting -= 1
            outbound_message.reset(token)


@asynccontextmanager
async def open_transport(
    target: Http | Sse, listener: TransportListener
) -> AsyncGenerator[tuple[ObservedReader, ObservedWriter]]:
    """The streams from and to a server, open while the context is. Its failures come with the first request."""
    certificates = await asyncio.to_thread(httpx2.create_ssl_context)  # it reads them: 25 ms
    async with AsyncExitStack() as stack:
        match target:
            case Http(url=url, headers=headers):
                client = IsolatingClient(
                    headers, answers_in_body=True, on_lost=listener.lost, certificates=certificates
                )
                await stack.enter_async_context(client)
                reader, writer = await stack.enter_async_context(
                    streamable_http_client(url, http_client=client, max_sse_event_size=MAX_ANSWER_BYTES)
                )
            case Sse(url=url, headers=headers):
                streams = sse_client(
                    url,
                    headers=dict(headers),
                    timeout=CONNECT_SECONDS,
                    httpx_client_factory=_sse_factory(listener.lost, certificates),
                )
                reader, writer = await stack.enter_async_context(streams)
        observed = ObservedWriter(writer)
        yield ObservedReader(reader, listener, observed), observed


def _sse_factory(on_lost: Callable[[], None], certificates: ssl.SSLContext) -> Any:
    def factory(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return IsolatingClient(headers or {}, answers_in_body=False, on_lost=on_lost, certificates=certificates)

    return factory
