"""Opening the way to a server: its process or its address, watched in both directions."""

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

from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.flight import Cargo, cargo, flying
from plugins_mcp.mcp.http_client import CONNECT_SECONDS, IsolatingClient
from plugins_mcp.mcp.spec import Http, ServerSpec, Sse, Stdio
from plugins_mcp.mcp.stderr import StderrTail
from plugins_mcp.mcp.stdio import child_streams


class Watch(Protocol):
    """What the owner of a connection wants to hear of. Called in line: must not block, await or raise."""

    def lost(self) -> None:
        """The connection cannot go on. May be said more than once."""
        ...

    def result(self, result: dict[str, Any]) -> None:
        """A result came and has not been looked at yet; it may be changed in place."""
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


class WatchedReader(_Closing):
    """What comes in. The SDK tells nobody when it ends, so its end is noticed here."""

    def __init__(self, inner: _Reader, watch: Watch) -> None:
        super().__init__(inner)
        self._inner = inner
        self._watch = watch

    @property
    def last_context(self) -> Any:
        """The context of whoever put the last message in; the SDK runs handlers in it."""
        return getattr(self._inner, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            item = await self._inner.__anext__()
        except BaseException:
            self._watch.lost()
            raise
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            self._watch.result(item.message.result)
        return item

    async def receive(self) -> SessionMessage | Exception:
        return await self._inner.receive()


class WatchedWriter(_Closing):
    """What goes out, labelled with the call it belongs to. `leaves_here`: handing it over is sending it (stdio)."""

    def __init__(self, inner: _Writer, *, leaves_here: bool) -> None:
        super().__init__(inner)
        self._inner = inner
        self._leaves_here = leaves_here

    async def send(self, item: SessionMessage, /) -> None:
        message, flight = item.message, flying.get()
        if not isinstance(message, JSONRPCRequest):
            return await self._carry(item, Cargo(expects_answer=False))
        if flight is None or message.method != "tools/call":
            if flight is not None:
                flight.answered = True  # within a call the SDK asks for a listing only because of an answer
            return await self._carry(item, Cargo())
        flight.rounds += 1
        flight.answered = False
        flight.sent = flight.sent or self._leaves_here
        try:
            return await self._carry(item, Cargo(flight))
        except (BrokenResourceError, ClosedResourceError):
            flight.sent = flight.rounds > 1  # nobody took it over
            raise

    async def _carry(self, item: SessionMessage, label: Cargo) -> None:
        token = cargo.set(label)
        try:
            await self._inner.send(item)
        finally:
            cargo.reset(token)


@asynccontextmanager
async def open_transport(
    spec: ServerSpec, watch: Watch, stderr: StderrTail
) -> AsyncGenerator[tuple[WatchedReader, WatchedWriter]]:
    """The streams to and from the server of `spec`, for as long as the block runs.

    Raises:
        OSError: the process cannot be started. Failures of a remote server come when it is first asked.
    """
    async with AsyncExitStack() as stack:
        match spec.transport:
            case Stdio() as child:
                errors = stack.enter_context(stderr.opened())
                reader, writer = await stack.enter_async_context(child_streams(child, errors, spec))
            case Http(url=url, headers=headers):
                client = IsolatingClient(headers, answers_follow=True, on_lost=watch.lost)
                await stack.enter_async_context(client)
                reader, writer = await stack.enter_async_context(
                    streamable_http_client(url, http_client=client, max_sse_event_size=MAX_ANSWER_BYTES)
                )
            case Sse(url=url, headers=headers):
                sse = sse_client(
                    url,
                    headers=dict(headers),
                    timeout=CONNECT_SECONDS,
                    httpx_client_factory=_sse_factory(watch.lost),
                )
                reader, writer = await stack.enter_async_context(sse)
        yield WatchedReader(reader, watch), WatchedWriter(writer, leaves_here=isinstance(spec.transport, Stdio))


def _sse_factory(on_lost: Callable[[], None]) -> Any:
    def factory(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return IsolatingClient(headers or {}, answers_follow=False, on_lost=on_lost)

    return factory
