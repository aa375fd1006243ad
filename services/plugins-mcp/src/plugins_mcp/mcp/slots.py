"""How many calls may run on one server at once."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Slots:
    """A number of slots, given out in the order of asking. Those who still wait can be turned away."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[asyncio.Future[bool]] = deque()

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[bool]:
        """Hold a slot for as long as the block; without one, when it was turned away (False)."""
        held = self._take() or await self._wait()
        try:
            yield held
        finally:
            if held:
                self._give()

    def turn_away(self) -> None:
        """Let everybody who waits go on without a slot."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(False)

    def _take(self) -> bool:
        if not self._free or self._waiting:
            return False
        self._free -= 1
        return True

    async def _wait(self) -> bool:
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self._give()  # it was handed over in the same moment
            raise

    def _give(self) -> None:
        """Hand a slot to the next who still waits for one."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(True)
                return
        self._free += 1
