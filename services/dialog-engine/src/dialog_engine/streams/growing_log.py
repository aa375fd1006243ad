"""A log that grows while it is read: entries are kept once, and each reader has a place of its own."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator

from dialog_engine.chat import frames
from dialog_engine.chat.frames import Batch, Cursor, Frame, LogGoneError
from dialog_engine.news import News
from dialog_engine.streams.log_entries import Entry
from dialog_engine.streams.packed_entries import PackedEntries

BATCH_CHARACTERS = 8_000
"""A reader takes so much at a time: one that is slow, or does not read at all, holds on to no more."""


class GrowingLog:
    """Read by any number of clients at their own pace: there is no queue per client, only a place in the log.

    One clock per log, and none per wait, tells its readers that there is no news: they wait for every token.
    """

    def __init__(self) -> None:
        self._entries = PackedEntries()
        self._news = News()
        self._readers_go = False
        self._readers = 0
        self._grew_at = 0.0
        self._clock: asyncio.TimerHandle

    def let_go(self) -> None:
        """Readers get what is there, and then their stream ends."""
        self._readers_go = True
        self._news.tell()

    def _add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._entries.add(entry)
        self._grew_at = time.monotonic()
        self._news.tell()

    async def follow(self, after: Cursor) -> AsyncGenerator[Batch]:
        """What comes after `after`, as it comes; an empty batch when nothing came for a while.

        Raises:
            LogGoneError: something is missing between `after` and what is there.
        """
        woken = False
        self._arrive()
        try:
            while True:
                if entries := self._entries.since(after):
                    for batch in batches_of(entries, after):
                        yield batch
                    after = entries[-1].cursor
                    woken = False  # more may have come meanwhile
                elif self._readers_go:
                    return
                elif woken:
                    yield ()
                    woken = False
                else:
                    await self._news.wait()
                    woken = True
        finally:
            self._leave()

    def _arrive(self) -> None:
        """The clock ticks for as long as there is a reader."""
        self._readers += 1
        if self._readers == 1:
            self._tick_in(frames.IDLE_SECONDS)

    def _leave(self) -> None:
        self._readers -= 1
        if self._readers == 0:
            self._clock.cancel()

    def _tick_in(self, seconds: float) -> None:
        self._clock = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        left = self._grew_at + frames.IDLE_SECONDS - time.monotonic()
        if left <= 0:
            self._news.tell()
        self._tick_in(left if left > 0 else frames.IDLE_SECONDS)


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
            raise LogGoneError(f"what came between {after} and {entry.cursor} is missing")
        frame = entry.frame
        if batch and size + len(frame.data) > BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(frame)
        size += len(frame.data)
        after = entry.cursor
    if batch:
        yield batch
