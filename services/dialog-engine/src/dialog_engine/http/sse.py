"""Server-Sent Events: frames of a turn's log as bytes on the wire."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from sse_starlette import EventSourceResponse

from dialog_engine.chat.frames import Frame

PING_SECONDS = 15
SEND_TIMEOUT_SECONDS = 30
RETRY_MS = 1000
"""How long a browser waits before it reconnects."""


def event_bytes(frame: Frame) -> bytes:
    """One event. Its data is one line of JSON, so one `data:` line."""
    return f"id: {frame.id}\nevent: {frame.name}\ndata: {frame.data}\n\n".encode()


async def _bytes(frames: AsyncGenerator[Frame]) -> AsyncGenerator[bytes]:
    yield f"retry: {RETRY_MS}\n\n".encode()
    async with aclosing(frames) as each:
        async for frame in each:
            yield event_bytes(frame)


def event_stream(frames: AsyncGenerator[Frame], headers: dict[str, str] | None = None) -> EventSourceResponse:
    """`frames` as a response. A client that does not read is dropped; it can resume."""
    return EventSourceResponse(
        _bytes(frames),
        headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"} | (headers or {}),
        sep="\n",
        ping=PING_SECONDS,
        send_timeout=SEND_TIMEOUT_SECONDS,
    )
