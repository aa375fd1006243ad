"""The log of a running turn: in memory for the clients that are attached, on its way to Redis for all others."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable

from dialog_engine.chat.events import DONE
from dialog_engine.chat.frames import Cursor
from dialog_engine.chat.ports import TurnLog
from dialog_engine.model import Turn, TurnEvent
from dialog_engine.streams.growing_log import GrowingLog
from dialog_engine.streams.log_entries import Entry, entry_of, merged

RUN_CHARACTERS = 4_000
"""How long a run of deltas becomes: a reader gets it as one event."""
CLOSE_SECONDS = 2.0
"""How long the end of a turn waits for Redis; the log stays in memory for a while whatever happens."""


class LiveLog(GrowingLog, TurnLog):
    """Written by the turn's owner. It holds its whole epoch, so what Redis has lost can be stored again from here.

    What Redis has is merged here, so that a long answer does not stay as thousands of small pieces.
    """

    def __init__(self, turn: Turn, on_growth: Callable[["LiveLog"], None]) -> None:
        super().__init__()
        self.turn = turn
        self.ended = False
        self._on_growth = on_growth
        self._stored = 0  # how many entries, from the start, Redis has
        self._next = 1
        self._all_stored: asyncio.Future[None] | None = None
        """There is one while the end of the turn waits for it."""

    @property
    def newest(self) -> Cursor:
        """The place of one who has read everything."""
        return Cursor(self.turn.epoch, self._next - 1)

    @property
    def last(self) -> Entry | None:
        """The last entry."""
        return self._entries[-1] if self._entries else None

    @property
    def stored_up_to(self) -> int:
        """The number of the last entry that Redis has; 0 for none."""
        return self._entries[self._stored - 1].last if self._stored else 0

    def since(self, place: Cursor) -> list[Entry]:
        """What a reader at `place` has not seen, or the first of it."""
        return self._since(place)

    def append(self, event: TurnEvent) -> None:
        entry = entry_of(self.turn.epoch, self._next, event)
        self._next += 1
        self._add([entry])
        if entry.name == DONE:
            self._end()
        self._on_growth(self)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                if self._stored < len(self._entries):
                    self._all_stored = asyncio.get_running_loop().create_future()
                    await self._all_stored
        except TimeoutError:
            pass  # Redis is away: the entries stay here, and are stored when it is back
        if not self.ended:
            self._end()
            self._on_growth(self)

    def _end(self) -> None:
        self.ended = True
        self.let_go()

    def to_store(self) -> list[Entry]:
        """What Redis does not have yet, merged."""
        self._entries[self._stored :] = merged(self._entries[self._stored :])
        return self._entries[self._stored :]

    def stored(self, number: int) -> None:
        """Redis has everything up to `number`, and nothing after it."""
        at = bisect_right(self._entries, number, key=lambda entry: entry.last)
        if at < len(self._entries) and self._entries[at].first <= number:
            self._entries[at : at + 1] = self._entries[at].parted(number)
            at += 1
        since = max(0, min(self._stored, at) - 1)
        runs = merged(self._entries[since:at], RUN_CHARACTERS)
        self._entries[since:at] = runs
        self._stored = since + len(runs)
        self._note_stored()

    def give_up(self) -> None:
        """Another engine has taken the turn over: nothing of this is stored any more, and its readers go there."""
        self._stored = len(self._entries)
        self._note_stored()
        self._end()

    def _note_stored(self) -> None:
        if self._stored == len(self._entries) and self._all_stored and not self._all_stored.done():
            self._all_stored.set_result(None)
