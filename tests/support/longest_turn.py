"""Measures the loop of a test, where the loop probe does not: it exempts what tests and anyio run."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.support.loop_probe.sitecustomize import slowness

MOST_SECONDS = 0.06
"""A little more than the probe's: peers of the test work in the same loop."""


@asynccontextmanager
async def short_turns() -> AsyncGenerator[None]:
    """Fails a test in whose context the loop worked for more than that, in processor time, between two turns."""
    turns: list[float] = []
    measuring = asyncio.create_task(_measure(turns))
    try:
        yield
    finally:
        measuring.cancel()
        await asyncio.wait([measuring])
    assert max(turns) < MOST_SECONDS * slowness(), f"an event loop worked for {max(turns):.3f} s between two turns"


async def _measure(turns: list[float]) -> None:
    while True:
        began = time.thread_time()
        try:
            await asyncio.sleep(0)
        finally:  # the last turn counts too, in which the test ends
            turns.append(time.thread_time() - began)
