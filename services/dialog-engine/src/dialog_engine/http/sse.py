"""Server-Sent Events: frames of a turn's log as bytes on the wire."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from sse_starlette import EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

from dialog_engine.chat.frames import Frame, LogGoneError

log = logging.getLogger(__name__)

PING_SECONDS = 15
SEND_TIMEOUT_SECONDS = 30
RETRY_MS = 1000
"""How long a browser waits before it reconnects."""


def event_bytes(frame: Frame) -> bytes:
    """One event. Its data is one line of JSON, so one `data:` line."""
    return f"id: {frame.id}\nevent: {frame.name}\ndata: {frame.data}\n\n".encode()


class EventStream(EventSourceResponse):
    """A stream that is also brought to its end when the server shuts down: its readers see an end, not an error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        ended = False

        async def noted(message: Message) -> None:
            nonlocal ended
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        await super().__call__(scope, receive, noted)
        if not ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _bytes(frames: AsyncGenerator[Frame]) -> AsyncGenerator[bytes]:
    yield f"retry: {RETRY_MS}\n\n".encode()
    async with aclosing(frames) as each:
        try:
            async for frame in each:
                yield event_bytes(frame)
        except LogGoneError as error:
            # The turn runs, and its log cannot be read now. The client comes back for the rest.
            log.info("the log of turn %s cannot be read", error)


def event_stream(frames: AsyncGenerator[Frame], headers: dict[str, str] | None = None) -> EventStream:
    """`frames` as a response. A client that does not read is dropped; it can resume."""
    return EventStream(
        _bytes(frames),
        headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"} | (headers or {}),
        sep="\n",
        ping=PING_SECONDS,
        send_timeout=SEND_TIMEOUT_SECONDS,
    )
