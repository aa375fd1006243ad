"""The streams of the SDK's transports over HTTP, observed in both directions."""

from types import TracebackType
from typing import Any, Protocol, Self

from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from plugins_mcp.mcp.calls import Outbound, note_request, outbound_message
from plugins_mcp.mcp.dispatcher import TransportListener, progress_of, room_for_request, updated_resource


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
    Updates of resources are passed on here.
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
                case SessionMessage(JSONRPCNotification() as message) if uri := updated_resource(message):
                    self._listener.updated(uri)
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


def observed(reader: _Reader, writer: _Writer, listener: TransportListener) -> tuple[ObservedReader, ObservedWriter]:
    """The two streams of a transport, which report to `listener`."""
    writing = ObservedWriter(writer)
    return ObservedReader(reader, listener, writing), writing
