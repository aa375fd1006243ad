"""Server-Sent Events: frames of a turn's log as bytes on the wire.

A stream outlives its request: what the framework holds for a request is let go when its stream begins.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dialog_engine.chat.events import DONE, Batch, Frame

RETRY_MS = 1000
"""How long a browser waits before it reconnects."""
FAREWELL_RETRY_MS = (200, 1200)
"""The same after a farewell: each client gets its own time, so that not all come back at once."""
WRITE_BYTES = 8_192
"""How much is written at once, so that a client that does not read costs little."""
CUT_SECONDS = 1.0
"""How long a stream that is cut by the server may take to end well."""

PING = b": ping\n\n"
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    # Neither kept nor changed on the way: a proxy that compresses a stream holds it back.
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",  # nginx and those that took it over
}


def event_bytes(frame: Frame) -> bytes:
    """One event. Its data is one line of JSON, so one `data:` line."""
    return f"id: {frame.id}\nevent: {frame.name}\ndata: {frame.data}\n\n".encode()


def farewell() -> bytes:
    """What a client is told whose turn goes on and whose stream does not: come back, and when."""
    return f": farewell\nretry: {random.randint(*FAREWELL_RETRY_MS)}\n\n".encode()


class Streams:
    """The event streams of one engine: how many are open, and `on_drop`, told of each client that was given up."""

    def __init__(self, on_drop: Callable[[], None] = lambda: None) -> None:
        self.open = 0
        self.on_drop = on_drop


class EventStream(Response):
    """A response that goes on for as long as there are batches. Its body is told when the framework has returned."""

    def __init__(
        self, streams: Streams, batches: AsyncGenerator[Batch], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(headers=HEADERS | dict(headers or {}))
        del self.headers["content-length"]
        self._streams = streams
        self._batches = batches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, and leave the rest for afterwards."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        afterwards(scope, partial(tell, self._streams, self._batches, scope["state"]["client_gone"]))


async def tell(streams: Streams, batches: AsyncGenerator[Batch], gone: asyncio.Future[None], send: Send) -> None:
    """Tell a client everything. It ends well whatever ends it, but for a client that is `gone`."""
    telling: Any = asyncio.current_task()

    def stop(_: asyncio.Future[None]) -> None:
        telling.cancel()

    gone.add_done_callback(stop)
    streams.open += 1
    try:
        async with aclosing(batches):
            await send(_body(f"retry: {RETRY_MS}\n\n".encode()))
            last = ""
            async for batch in batches:
                for data in writes(batch):
                    await send(_body(data))
                last = batch[-1].name if batch else last
            await send(_body(b"" if last == DONE else farewell(), last=True))
    except asyncio.CancelledError:
        if not gone.done() or telling.uncancel():
            with suppress(TimeoutError):
                async with asyncio.timeout(CUT_SECONDS):
                    await send(_body(farewell(), last=True))
            raise
    finally:
        streams.open -= 1
        gone.remove_done_callback(stop)


def writes(batch: Batch) -> Iterator[bytes]:
    """The batch as bytes to be written one after the other; a ping when there is nothing in it."""
    if not batch:
        yield PING
        return
    data: list[bytes] = []
    size = 0
    for frame in batch:
        event = event_bytes(frame)
        if size and size + len(event) > WRITE_BYTES:
            yield b"".join(data)
            data, size = [], 0
        data.append(event)
        size += len(event)
    yield b"".join(data)


def _body(data: bytes, *, last: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": not last}


Work = Callable[[Send], Awaitable[None]]
"""The rest of a response, given how to send it."""

_WORK = "callstream.afterwards"


class Afterwards:
    """ASGI, around everything else: does what a response left to be done when all that made it has returned.

    Told from inside, a stream would hold for as long as it lasts what its request needed for milliseconds: a dozen
    frames of routers and middlewares, exit stacks, the request, its dependencies. That is as much again as the client.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left: list[Work] = []
        # A copy: the server keeps its scope for as long as the connection, and routers put much into theirs.
        await self._app({**scope, _WORK: left}, receive, send)
        if left:
            scope["headers"].clear()  # the server, too, would keep them for as long as the stream lasts
        for work in left:
            await work(send)


def afterwards(scope: Scope, work: Work) -> None:
    """Leave `work` to be done when the request of this scope is done with; the head is sent already.

    What it raises goes to the server, which logs it and ends the connection: no handler of errors is there any more.
    """
    scope[_WORK].append(work)
