"""Opens the streams to a server, by stdio, Streamable HTTP or SSE, and observes both directions."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self

import httpx2
from anyio import BrokenResourceError, ClosedResourceError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCRequest, JSONRPCResponse

from plugins_mcp.mcp.calls import Outbound, SendState, current_call, outbound_message
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.http_client import CONNECT_SECONDS, IsolatingClient
from plugins_mcp.mcp.spec import Http, ServerSpec, Sse, Stdio
from plugins_mcp.mcp.stdio import ChildDiagnostics, child_streams


class TransportListener(Protocol):
    """Takes the events of a transport. Called while messages are read: must not block, await or raise."""

    def lost(self) -> None:
        """The connection has ended. May be called more than once."""
        ...

    def result(self, result: dict[str, Any]) -> None:
        """A result arrived that the SDK has not read yet; it may be changed in place."""
        ...


def note_request(method: str) -> SendState | None:
    """Record in the current call that the SDK sends a request. Returns the state of a tool call, None for the rest."""
    send_state = current_call.get()
    if send_state is None:
        return None
    if method != "tools/call":
        send_state.answered = True  # during a call the SDK sends another request only because of an answer
        return None
    send_state.rounds += 1
    send_state.answered = False
    return send_state


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
    """Incoming messages. The SDK does not report the end of the stream, so it is observed here."""

    def __init__(self, inner: _Reader, listener: TransportListener) -> None:
        super().__init__(inner)
        self._inner = inner
        self._listener = listener

    @property
    def last_context(self) -> Any:
        """The context of the sender of the last message; the SDK runs handlers in it."""
        return getattr(self._inner, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            item = await self._inner.__anext__()
        except BaseException:
            self._listener.lost()
            raise
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            self._listener.result(item.message.result)
        return item

    async def receive(self) -> SessionMessage | Exception:
        return await self._inner.receive()


class ObservedWriter(_Closing):
    """Outgoing messages, each marked with the call it belongs to.

    `sends_at_once`: a message that is handed over counts as sent (stdio). Over HTTP the HTTP client records that.
    """

    def __init__(self, inner: _Writer, *, sends_at_once: bool) -> None:
        super().__init__(inner)
        self._inner = inner
        self._sends_at_once = sends_at_once

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        if not isinstance(message, JSONRPCRequest):
            return await self._send(item, Outbound(expects_answer=False))
        send_state = note_request(message.method)
        if send_state is None:
            return await self._send(item, Outbound())
        send_state.sent = send_state.sent or self._sends_at_once
        try:
            return await self._send(item, Outbound(send_state))
        except (BrokenResourceError, ClosedResourceError):
            send_state.sent = send_state.rounds > 1  # the transport is closed and did not take this message
            raise

    async def _send(self, item: SessionMessage, outbound: Outbound) -> None:
        token = outbound_message.set(outbound)
        try:
            await self._inner.send(item)
        finally:
            outbound_message.reset(token)


@asynccontextmanager
async def open_transport(
    spec: ServerSpec, listener: TransportListener, child: ChildDiagnostics
) -> AsyncGenerator[tuple[ObservedReader, ObservedWriter]]:
    """The streams from and to the server of `spec`, open while the context is. `child` is filled in for stdio.

    Raises:
        OSError: the process cannot be started. Failures of a remote server come with the first request.
    """
    async with AsyncExitStack() as stack:
        match spec.transport:
            case Stdio() as command:
                reader, writer = await stack.enter_async_context(child_streams(command, child, spec))
            case Http(url=url, headers=headers):
                client = IsolatingClient(headers, answers_in_body=True, on_lost=listener.lost)
                await stack.enter_async_context(client)
                reader, writer = await stack.enter_async_context(
                    streamable_http_client(url, http_client=client, max_sse_event_size=MAX_ANSWER_BYTES)
                )
            case Sse(url=url, headers=headers):
                sse = sse_client(
                    url,
                    headers=dict(headers),
                    timeout=CONNECT_SECONDS,
                    httpx_client_factory=_sse_factory(listener.lost),
                )
                reader, writer = await stack.enter_async_context(sse)
        at_once = isinstance(spec.transport, Stdio)
        yield ObservedReader(reader, listener), ObservedWriter(writer, sends_at_once=at_once)


def _sse_factory(on_lost: Callable[[], None]) -> Any:
    def factory(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return IsolatingClient(headers or {}, answers_in_body=False, on_lost=on_lost)

    return factory
