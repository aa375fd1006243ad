"""What is read while it grows: its text, which comes in small pieces, and how its readers wait for more."""

import asyncio

AT_ONCE = 32
"""So many pieces are joined when they have piled up."""


class Pieces:
    """Text that grows. `str` is what has come so far; it costs by the length, and so does growing.

    A string of its own takes ten times the room of a token's characters.
    """

    __slots__ = ("_joined", "_last")

    def __init__(self) -> None:
        self._joined: list[str] = []
        self._last: list[str] = []

    def add(self, piece: str) -> None:
        """Put `piece` at the end."""
        self._last.append(piece)
        if len(self._last) == AT_ONCE:
            self._joined.append("".join(self._last))
            self._last.clear()

    def __str__(self) -> str:
        return "".join((*self._joined, *self._last))


class News:
    """Wakes those who wait for it. It remembers nothing: look first, and wait when there is nothing to be seen.

    It is like an asyncio.Event, of which each takes 0.7 KiB, and each turn would have several.
    """

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
