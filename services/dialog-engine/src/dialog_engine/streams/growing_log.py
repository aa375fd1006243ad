"""A log that grows while it is read: entries are kept once, and each reader has a place of its own."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence

from dialog_engine.chat import frames
from dialog_engine.chat.frames import Batch, Cursor, Frame, LogGoneError
from dialog_engine.streams.log_entries import Entry


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
                yield batch_of(entries, after)
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
        at = len(self._entries)  # from the end: most readers are there
        while at and self._entries[at - 1].is_after(place):
            at -= 1
        return self._entries[at:]


def batch_of(entries: Sequence[Entry], after: Cursor) -> list[Frame]:
    """The entries as a reader at `after` needs them.

    Raises:
        LogGoneError: something is missing between `after` and the first, or between two of them.
    """
    batch: list[Frame] = []
    for entry in entries:
        if not entry.goes_on_from(after):
            raise LogGoneError(f"what came between {after} and {entry.epoch}-{entry.first} is missing")
        batch.append(entry.frame(after))
        after = entry.cursor
    return batch
