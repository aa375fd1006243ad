"""Text that comes in small pieces: a string of its own takes ten times the room of a token's characters."""

AT_ONCE = 32
"""So many pieces are joined when they have piled up."""


class Pieces:
    """Text that grows. `str` is what has come so far; it costs by the length, and so does growing."""

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
