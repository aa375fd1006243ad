"""Work that begins before anybody may hear of it."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

T = TypeVar("T")


class HeadStart(Generic[T]):
    """A generator that is at work on its first item already. Use `all`, or `drop` it.

    The first item is made in another task than the others: no time limit or task group may be held over a yield.
    """

    def __init__(self, items: AsyncGenerator[T]) -> None:
        self._items = items
        self._first = asyncio.create_task(self._next(), name="a head start")

    async def all(self) -> AsyncGenerator[T]:
        """Every item. Closing this closes the generator.

        Raises:
            Exception: as the generator does.
        """
        try:
            for item in await self._first:
                yield item
            async for item in self._items:
                yield item
        finally:
            await self.drop()

    async def drop(self) -> None:
        """End it, wherever it is."""
        self._first.cancel()
        await asyncio.wait([self._first])
        await self._items.aclose()

    async def _next(self) -> list[T]:
        async for item in self._items:
            return [item]
        return []
