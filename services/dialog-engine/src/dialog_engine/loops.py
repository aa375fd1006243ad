"""What the engine does once when it stops."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable


@contextlib.asynccontextmanager
async def left_when(closing: asyncio.Event, leave: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Call `leave` once: when `closing` is set, or at the end of the block."""

    async def leave_on_closing() -> None:
        await closing.wait()
        await leave()

    leaving = asyncio.create_task(leave_on_closing(), name="leave")
    try:
        yield
    finally:
        closing.set()
        await leaving
