"""A log that grows while it is read: entries are kept once, and each reader has a place of its own."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator

from dialog_engine.chat import frames
from dialog_engine.chat.frames import Batch, Cursor, Frame, LogGoneError
from dialog_engine.streams.log_entries import Entry

ENTRIES_AT_ONCE = 50
BATCH_CHARACTERS = 8_000
"""A reader takes so much at a time: one that is slow, or does not read at all, holds on to no more."""


class GrowingLog:
    """Read by any number of clients at their own pace: there is no queue per client, only a place in the log."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._grown = asyncio.Event()
        self._readers_go = False

    def let_go(self) -> None:
        """Readers get what is there, and then their stream ends."""
        self._readers_go = True
        self._grown.set()

    def _add(self, entries: Iterable[Entry]) -> None:
        self._entries += entries
        self._grown.set()

    async def follow(self, after: Cursor) -> AsyncGenerator[Batch]:
        """What comes after `after`, as it comes; an empty batch when nothing came for a while.

        Raises:
            LogGoneError: something is missing between `after` and what is there.
        """
        while True:
            if entries := self._since(after):
                for batch in batches_of(entries, after):
                    yield batch
                after = entries[-1].cursor
                continue  # more may have come meanwhile
            if self._readers_go:
                return
            self._grown.clear()
            try:
                async with asyncio.timeout(frames.IDLE_SECONDS):
                    await self._grown.wait()
            except TimeoutError:
                yield ()

    def _since(self, place: Cursor) -> list[Entry]:
        """The next entries for a reader at `place`, ENTRIES_AT_ONCE at most."""
        at = len(self._entries)  # from the end: most readers are there
        while at and self._entries[at - 1].is_after(place):
            at -= 1
        return self._entries[at : at + ENTRIES_AT_ONCE]


def batches_of(entries: Iterable[Entry], after: Cursor) -> Iterator[list[Frame]]:
    """The entries as a reader at `after` needs them, BATCH_CHARACTERS at a time.

    Raises:
        LogGoneError: something is missing between `after` and the first, or between two of them.
    """
    batch: list[Frame] = []
    size = 0
    for entry in entries:
        if not entry.goes_on_from(after):
            if batch:
                yield batch
            raise LogGoneError(f"what came between {after} and {entry.epoch}-{entry.first} is missing")
        frame = entry.frame(after)
        if batch and size + len(frame.data) > BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(frame)
        size += len(frame.data)
        after = entry.cursor
    if batch:
        yield batch
