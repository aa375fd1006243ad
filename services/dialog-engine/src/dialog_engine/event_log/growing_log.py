"""A log that grows while it is read: entries are kept once, and each reader has a place of its own.

An entry is the same in memory, in Redis and on the wire. In memory the newest are as they are and the others packed,
since there are many logs.
"""

import asyncio
import sys
import time
import zlib
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.events import START, Batch, Cursor, Frame, LogGoneError


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, or deltas of one kind that came within a few milliseconds. `data` is its JSON."""

    epoch: int
    seq: int
    name: str
    data: str

    @property
    def cursor(self) -> Cursor:
        """The place of one who has read it."""
        return Cursor(self.epoch, self.seq)

    @property
    def frame(self) -> Frame:
        """The entry as a client gets it."""
        return Frame(f"{self.epoch}-{self.seq}", self.name, self.data)

    def is_after(self, place: Cursor) -> bool:
        """Whether a reader at `place` needs it."""
        return self.epoch > place.epoch or (self.epoch == place.epoch and self.seq > place.seq)

    def goes_on_from(self, place: Cursor) -> bool:
        """Whether it is the next entry for a reader at `place`. An epoch that begins tells all that matters again."""
        if self.epoch == place.epoch:
            return self.seq == place.seq + 1
        return self.epoch > place.epoch and self.seq == 1


def entry_of(epoch: int, seq: int, name: str, data: dict[str, Any]) -> Entry:
    """The event `name` with its data as an entry."""
    return Entry(epoch, seq, name, msgspec.json.encode(data).decode())


def entry_from_fields(place: Cursor, fields: dict[bytes, bytes]) -> Entry:
    """The entry at `place` of a Redis stream."""
    return Entry(place.epoch, place.seq, sys.intern(fields[b"event"].decode()), fields[b"data"].decode())


BLOCK = 50
"""How many entries are packed together. The newest ones, once or twice as many, are not: most readers are there."""
COMPRESSED_BYTES = 16_384
"""A block that is larger is not compressed: it would hold up the event loop."""

_cursor = attrgetter("cursor")


class PackedEntries:
    """Entries in the order of their ids."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Cursor, bytes]] = []
        """The place of the last entry of each, and all of them."""
        self._newest: list[Entry] = []

    @property
    def last(self) -> Entry | None:
        """The last entry."""
        return self._newest[-1] if self._newest else None

    def add(self, entry: Entry) -> None:
        """Add an entry whose id is after all that are there."""
        self._newest.append(entry)
        if len(self._newest) == 2 * BLOCK:
            self._blocks.append((self._newest[BLOCK - 1].cursor, _packed(self._newest[:BLOCK])))
            del self._newest[:BLOCK]

    def since(self, place: Cursor) -> list[Entry]:
        """What comes after `place`, or the first BLOCK of it at most."""
        if not self._newest or not self._newest[-1].is_after(place):
            return []
        if place < (self._blocks[-1][0] if self._blocks else START):
            packed = self._blocks[bisect_right(self._blocks, place, key=lambda block: block[0])][1]
            return [entry for entry in _unpacked(packed) if entry.is_after(place)]
        at = bisect_right(self._newest, place, key=_cursor)
        return self._newest[at : at + BLOCK]


def _packed(entries: list[Entry]) -> bytes:
    """JSON has no line breaks and no name has a space."""
    data = "\n".join(f"{entry.epoch} {entry.seq} {entry.name} {entry.data}" for entry in entries).encode()
    return zlib.compress(data, 1 if len(data) <= COMPRESSED_BYTES else 0)


def _unpacked(block: bytes) -> list[Entry]:
    fields = (line.split(" ", 3) for line in zlib.decompress(block).decode().split("\n"))
    return [Entry(int(epoch), int(seq), name, data) for epoch, seq, name, data in fields]


BATCH_CHARACTERS = 8_000
"""A reader takes so much at a time: one that is slow, or does not read at all, holds on to no more."""


class GrowingLog:
    """Read by any number of clients at their own pace: there is no queue per client, only a place in the log.

    One clock per log, and none per wait, tells its readers that there is no news: they wait for every token.
    """

    def __init__(self) -> None:
        self._entries = PackedEntries()
        self._grown = asyncio.Event()
        self._readers_go = False
        self._readers = 0
        self._grew_at = 0.0
        self._clock: asyncio.TimerHandle

    def let_go(self) -> None:
        """Readers get what is there, and then their stream ends."""
        self._readers_go = True
        self._wake_readers()

    def _add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._entries.add(entry)
        self._grew_at = time.monotonic()
        self._wake_readers()

    def _wake_readers(self) -> None:
        self._grown.set()
        self._grown.clear()  # every reader that waits now is woken all the same; one that comes later waits

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
                    await self._grown.wait()
                    woken = True
        finally:
            self._leave()

    def _arrive(self) -> None:
        """The clock ticks for as long as there is a reader."""
        self._readers += 1
        if self._readers == 1:
            self._tick_in(events.IDLE_SECONDS)

    def _leave(self) -> None:
        self._readers -= 1
        if self._readers == 0:
            self._clock.cancel()

    def _tick_in(self, seconds: float) -> None:
        self._clock = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        left = self._grew_at + events.IDLE_SECONDS - time.monotonic()
        if left <= 0:
            self._wake_readers()
        self._tick_in(left if left > 0 else events.IDLE_SECONDS)


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
