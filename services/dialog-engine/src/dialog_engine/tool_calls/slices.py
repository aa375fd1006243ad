"""Work that takes longer than the event loop may be held, such as an index of hundreds of tools.

It is written as a generator that yields wherever it could pause, and returns what it has made. So it stays pure, and
who runs it decides whether it pauses.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Slices = Generator[None, None, T]

SLICE_SECONDS = 0.002


def at_once(work: Slices[T]) -> T:
    """What `work` makes, without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


async def in_slices(work: Slices[T], now: Callable[[], float] = time.monotonic) -> T:
    """What `work` makes; after SLICE_SECONDS at most everybody else has a turn, if it yields that often."""
    ends = now() + SLICE_SECONDS
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value
        if now() >= ends:
            await asyncio.sleep(0)
            ends = now() + SLICE_SECONDS
