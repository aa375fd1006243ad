"""Waiting for news: like an asyncio.Event, of which each takes 0.7 KiB, and each turn would have several."""

import asyncio


class News:
    """Wakes those who wait for it. It remembers nothing: look first, and wait when there is nothing to be seen."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        """There is some."""
        for each in self._waiting:
            if not each.done():  # whoever waited may have been cancelled
                each.set_result(None)
        self._waiting.clear()

    def wait(self) -> asyncio.Future[None]:
        """Done when there is some."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return waiting
