"""How long an answer of Redis is waited for: less, once nobody else gets one either.

A user's first word may depend on the answer, so a Redis that has fallen silent must not cost as long as it takes to be
called an outage. That one answer is late says little; that the watch, asked to look, gets none says enough.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

LATE_SECONDS = 0.25
"""An answer is late: the watch is asked to look."""
SILENT_SECONDS = 0.5
"""The watch has waited for so long: nobody waits any longer, and nobody begins to."""
LOOK_AGAIN_SECONDS = 0.1


class Patience:
    """`silent_for` tells for how many seconds the watch has waited for an answer; `look` makes it ask now."""

    def __init__(self, silent_for: Callable[[], float] = lambda: 0.0, look: Callable[[], None] = lambda: None) -> None:
        self._silent_for = silent_for
        self._look = look

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncGenerator[None]:
        """Wait for an answer inside the block.

        Raises:
            TimeoutError: `seconds` have passed, or Redis is silent.
        """
        if self._silent_for() >= SILENT_SECONDS:
            raise TimeoutError("Redis is silent")
        loop = asyncio.get_running_loop()

        # Each step sets the timer of the next one: a loop that stood still has read what came before it judges.
        def late() -> None:
            nonlocal timer
            self._look()
            timer = loop.call_later(SILENT_SECONDS, judge)

        def judge() -> None:
            nonlocal timer
            if self._silent_for() >= SILENT_SECONDS:
                limit.reschedule(loop.time())
            else:
                timer = loop.call_later(LOOK_AGAIN_SECONDS, judge)

        async with asyncio.timeout(seconds) as limit:
            timer = loop.call_later(LATE_SECONDS, late)
            try:
                yield
            finally:
                timer.cancel()
