"""The log of a running turn: in memory for the clients that are attached, on its way to Redis for all others."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable

from dialog_engine.chat.events import DONE
from dialog_engine.chat.frames import Frame
from dialog_engine.chat.ports import TurnLog
from dialog_engine.model import Turn, TurnEvent
from dialog_engine.streams.log_entries import Entry, entry_of, merged

CLOSE_SECONDS = 2.0
"""How long the end of a turn waits for Redis; the log stays in memory for a while whatever happens."""


class LiveLog(TurnLog):
    """Written by the turn's owner, read by any number of clients at their own pace.

    There is no queue per client: each has a cursor, and the entries are kept once. What Redis has is merged, so that
    a long answer does not stay here as thousands of small pieces.
    """

    def __init__(self, turn: Turn, on_growth: Callable[["LiveLog"], None]) -> None:
        self.turn = turn
        self._on_growth = on_growth
        self._entries: list[Entry] = []
        self._stored = 0  # how many entries, from the start, Redis has
        self._next = 1
        self._grown = asyncio.Event()
        self._all_stored = asyncio.Event()
        self._all_stored.set()
        self.ended = False

    def append(self, event: TurnEvent) -> None:
        entry = entry_of(self._next, event)
        self._next += 1
        self._entries.append(entry)
        self.ended = self.ended or entry.name == DONE
        self._all_stored.clear()
        self._grown.set()
        self._on_growth(self)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._all_stored.wait()
        except TimeoutError:
            pass  # Redis is away: the entries stay here, and are stored when it is back
        self.ended = True
        self._grown.set()

    async def follow(self, after: int) -> AsyncGenerator[Frame]:
        """What comes after number `after` of this epoch, as it comes, to the end of the turn."""
        while True:
            at = bisect_right(self._entries, after, key=lambda entry: entry.last)
            while at < len(self._entries):
                entry = self._entries[at]
                yield entry.frame(self.turn.epoch, after)
                # Entries may have been merged meanwhile: look the place up again.
                after = entry.last
                at = bisect_right(self._entries, after, key=lambda entry: entry.last)
            if self.ended:
                return
            self._grown.clear()
            await self._grown.wait()

    def to_store(self) -> list[Entry]:
        """What Redis does not have yet, merged."""
        self._entries[self._stored :] = merged(self._entries[self._stored :])
        return self._entries[self._stored :]

    def stored(self, last: int) -> None:
        """Redis has everything up to number `last`."""
        self._stored = bisect_right(self._entries, last, key=lambda entry: entry.last)
        if self._stored == len(self._entries):
            self._all_stored.set()
