"""Background work of the engine: loops that run until shutdown, and the shutdown itself."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable

log = logging.getLogger(__name__)

RESTART_SECONDS = 1.0


@contextlib.asynccontextmanager
async def kept_running(*loops: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Run loops while the context is open. A loop that fails is logged and restarted after RESTART_SECONDS."""

    async def keep(run: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            try:
                await run()
            except Exception:
                log.exception("%s failed and is restarted", name)
            await asyncio.sleep(RESTART_SECONDS)

    names = [getattr(run, "__qualname__", repr(run)) for run in loops]
    tasks = [asyncio.create_task(keep(run, name), name=name) for run, name in zip(loops, names, strict=True)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


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
