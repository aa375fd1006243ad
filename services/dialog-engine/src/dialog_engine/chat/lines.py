"""Messages that wait here for the running turn of their session, in the order in which they came.

Which of all engines' messages is next is the claim's say; this wakes those who wait, and orders them while the engines
cannot talk to each other.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from dialog_engine.model import Turn


@dataclass(slots=True, eq=False)
class Place:
    """One message's place. It is heard of what happened even if it happened before anybody listened."""

    turn: Turn
    _rung: asyncio.Event = field(default_factory=asyncio.Event)

    def ring(self) -> None:
        """The session may be free."""
        self._rung.set()

    async def rung(self, seconds: float) -> None:
        """Wait until it may be free, so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        self._rung.clear()


class Lines:
    """One line per session in which somebody waits."""

    def __init__(self) -> None:
        self._lines: dict[str, list[Place]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    @contextmanager
    def place(self, turn: Turn) -> Generator[Place]:
        """The last place in the line of the turn's session, for as long as the block."""
        place = Place(turn)
        line = self._lines.setdefault(turn.session_id, [])
        line.append(place)
        try:
            yield place
        finally:
            line.remove(place)
            if not line:
                del self._lines[turn.session_id]
            self.ring(turn.session_id)

    def first(self, session_id: str) -> Turn | None:
        """Who came first of those that wait here."""
        line = self._lines.get(session_id)
        return line[0].turn if line else None

    def ring(self, session_id: str) -> None:
        """The session may be free, or the line has changed."""
        for place in self._lines.get(session_id, ()):
            place.ring()
