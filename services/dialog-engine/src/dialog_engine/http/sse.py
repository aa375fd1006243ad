"""Server-Sent Events: a turn's events as a response of sse-starlette."""

import asyncio
import enum
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message, Receive, Scope, Send

from dialog_engine.chat.events import DONE, Batch
from dialog_engine.http.guards import still_admitted
from dialog_engine.sideband import run_shielded

log = logging.getLogger(__name__)

RETRY_MS = 1000
"""How long a browser waits before it reconnects."""
HINT_RETRY_MS = (200, 1200)
"""The range of the same after a reconnect hint: each client gets its own time, so that not all come back at once."""
PING_SECONDS = 15.0
"""How often a comment is sent, so that proxies and clients can tell a quiet stream from a dead one."""
SEND_TIMEOUT_SECONDS = 20.0
"""How long a client may leave what is sent to it unread before its stream is ended. It can reconnect and resume."""
CHECK_SECONDS = 20.0
"""How often a stream checks the credential of its request, which may be revoked or expire meanwhile."""
NEWLINE = "\n"
HEADERS = {"Cache-Control": "no-store, no-transform"}
"""No intermediary may store or compress a stream: one that compresses it holds events back."""


class Streams:
    """The open event streams of one engine. `on_drop` is called for each client that does not read."""

    def __init__(self, on_drop: Callable[[], None] = lambda: None) -> None:
        self.open: set[EventStream] = set()
        self.on_drop = on_drop

    async def check(self) -> None:
        """End each stream that its client does not read, or whose sender is not admitted any more. Runs until
        cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS / 20)
            now = time.monotonic()
            for stream in [each for each in self.open if now - each.unread_since >= SEND_TIMEOUT_SECONDS]:
                stream.end(_End.UNREAD)
            for stream in [each for each in self.open if now - each.checked_at >= CHECK_SECONDS]:
                stream.checked_at = now
                await stream.check()
                await asyncio.sleep(0)  # many streams may be due, and a check need not wait for anything


class _End(enum.Enum):
    """Why a stream is ended before its turn."""

    UNREAD = enum.auto()
    REFUSED = enum.auto()


class EventStream(EventSourceResponse):
    """Sends batches of frames until there are no more, the client disconnects, or it does not read for too long."""

    def __init__(
        self,
        streams: Streams,
        batches: AsyncGenerator[Batch],
        headers: Mapping[str, str] | None = None,
        *,
        on_end: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        super().__init__(
            _events(batches),
            headers=HEADERS | dict(headers or {}),
            sep=NEWLINE,
            ping=PING_SECONDS,
            ping_message_factory=_ping,
        )
        self._scope: Scope = {}
        self._ended: asyncio.Future[_End] = asyncio.get_running_loop().create_future()
        self.checked_at = time.monotonic()
        self.unread_since = math.inf
        """Since when something that was sent has waited for the client to read."""
        self._streams = streams
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. The server closes the connection when it is not complete; the turn runs on in any case."""
        self._scope = scope
        self._streams.open.add(self)
        try:
            await super().__call__(scope, receive, send)
            if self._ended.done() and not self._ended.cancelled():
                await self._say_end(self._ended.result(), send)
        except* Exception:
            # The head of the response is sent: there is nothing left for the handlers of errors to answer.
            log.exception("an event stream failed", extra=self._subject())
        finally:
            self._streams.open.discard(self)
            await run_shielded(self._on_end())

    async def _say_end(self, end: _End, send: Send) -> None:
        if end is _End.UNREAD:
            text = "client %s has read nothing for %g s: its stream is ended"
            log.info(text, self._scope["client"], SEND_TIMEOUT_SECONDS, extra=self._subject())
            self._streams.on_drop()
        else:
            log.info("a stream is ended: the credential of its request is not valid any more", extra=self._subject())
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _subject(self) -> dict[str, str]:
        return {"subject": self._scope["state"]["principal"].subject}

    async def check(self) -> None:
        """End the stream if its sender is not admitted any more."""
        if not await still_admitted(self._scope):
            self.end(_End.REFUSED)

    def end(self, why: _End) -> None:
        """End the stream, unless it is ended already."""
        if not self._ended.done():
            self._ended.set_result(why)

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        """Send one message. `Streams.check` is its limit: a timer for each would cost more than the sending does."""
        self.unread_since = min(self.unread_since, time.monotonic())
        await send(message)
        self.unread_since = math.inf

    async def _listen_for_exit_signal_with_grace(self) -> None:
        """Return, which ends the stream, when it is to end before its turn.

        This is where sse-starlette waits for SIGTERM; its way to end streams then is switched off.
        """
        await self._ended  # with the stream this is cancelled, and so is the future


async def _events(batches: AsyncGenerator[Batch]) -> AsyncGenerator[ServerSentEvent]:
    """The frames as events; a stream that ends before its turn ends with a hint when to reconnect."""
    async with aclosing(batches):
        yield ServerSentEvent(retry=RETRY_MS, sep=NEWLINE)
        last = ""
        async for batch in batches:
            for frame in batch:
                yield ServerSentEvent(frame.data, event=frame.name, id=frame.id, sep=NEWLINE)
                last = frame.name
        if last != DONE:
            yield ServerSentEvent(comment="reconnect", retry=random.randint(*HINT_RETRY_MS), sep=NEWLINE)


def _ping() -> ServerSentEvent:
    return ServerSentEvent(comment="ping", sep=NEWLINE)
