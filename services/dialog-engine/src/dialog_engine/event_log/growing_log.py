"""A log in memory that grows while it is read: entries are stored once, and each reader has its own cursor.

An entry is the same in memory, in Redis and on the wire. The newest entries are kept as objects and older ones are
packed, because an engine holds many logs.
"""

import asyncio
import sys
import time
import zlib
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.events import START, Batch, Cursor, Frame, LogGoneError
from plugins_contract.questions import call_of_round


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One event, or deltas of one kind that came within a few milliseconds. `data` is its JSON."""

    epoch: int
    seq: int
    name: str
    data: str

    @property
    def cursor(self) -> Cursor:
        """The cursor of a reader that has read it."""
        return Cursor(self.epoch, self.seq)

    @property
    def frame(self) -> Frame:
        """The entry as a client gets it."""
        return Frame(f"{self.epoch}-{self.seq}", self.name, self.data)

    def is_after(self, place: Cursor) -> bool:
        """Whether a reader at `place` has not read it."""
        return self.epoch > place.epoch or (self.epoch == place.epoch and self.seq > place.seq)

    def follows(self, place: Cursor) -> bool:
        """Whether it is the next entry for a reader at `place`. The first entry of a later epoch always is, but for a
        new reader only if it begins the turn: a parked turn goes on where its earlier epoch has ended."""
        if self.epoch == place.epoch:
            return self.seq == place.seq + 1
        return self.epoch > place.epoch and self.seq == 1 and (place != START or self.epoch == 1 or self._begins)

    @property
    def _begins(self) -> bool:
        return self.name == events.RESET or (self.name == "control" and self.data.startswith('{"type":"turn"'))

    @property
    def waits_for(self) -> Mapping[str, str] | None:
        """Where a turn may have been parked behind this entry: see `TurnLogs.waited_for`. None elsewhere, and where an
        earlier release has not named all that waits."""
        if not self.frame.says_waiting:
            return None
        said = msgspec.json.decode(self.data)
        questions = said.get("questionIds", [])
        if "calls" not in said or len(questions) != said.get("questions", 0):
            return None
        asking = {call_of_round(each) for each in questions}
        hashes: dict[str, str] = said.get("hashes", {})
        return {each: hashes.get(each, "") for each in (*questions, *said["calls"]) if each not in asking}


def entry_of(epoch: int, seq: int, name: str, data: dict[str, Any]) -> Entry:
    """An event as an entry."""
    return Entry(epoch, seq, name, msgspec.json.encode(data).decode())


def entry_from_fields(place: Cursor, fields: dict[bytes, bytes]) -> Entry:
    """The entry at `place` of a Redis stream."""
    name, data = sys.intern(fields[b"event"].decode()), fields[b"data"].decode()
    if name == events.RESET:  # 0.1.0 had another name there; no reason has a quotation mark in it
        data = data.replace('","told":', '","events":', 1)
    return Entry(place.epoch, place.seq, name, data)


BLOCK = 25
"""How many entries are packed together. The newest ones, up to twice as many, are not: most readers are there."""
COMPRESSED_BYTES = 16_384
"""A larger block is not compressed, because that would block the event loop."""


class PackedEntries:
    """Entries in the order of their ids."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Cursor, bytes]] = []
        """The cursor of the last entry of each block, and the packed block."""
        self._newest: list[Entry] = []

    @property
    def last(self) -> Entry | None:
        """The last entry."""
        return self._newest[-1] if self._newest else None

    def add(self, entry: Entry) -> None:
        """Add an entry whose id is higher than all others."""
        self._newest.append(entry)
        if len(self._newest) == 2 * BLOCK:
            self._blocks.append((self._newest[BLOCK - 1].cursor, _packed(self._newest[:BLOCK])))
            del self._newest[:BLOCK]

    def since(self, place: Cursor) -> list[Entry]:
        """The entries after `place`, BLOCK of them at most."""
        if not self._newest or not self._newest[-1].is_after(place):
            return []
        if place < (self._blocks[-1][0] if self._blocks else START):
            packed = self._blocks[bisect_right(self._blocks, place, key=lambda block: block[0])][1]
            return [entry for entry in _unpacked(packed) if entry.is_after(place)]
        at = len(self._newest) - 1
        while at and self._newest[at - 1].is_after(place):  # nearly every reader lacks only the last ones
            at -= 1
        return self._newest[at : at + BLOCK]


def _packed(entries: list[Entry]) -> bytes:
    """Encoded JSON has no line breaks, and no event name has a space."""
    data = "\n".join(f"{entry.epoch} {entry.seq} {entry.name} {entry.data}" for entry in entries).encode()
    return zlib.compress(data, 1 if len(data) <= COMPRESSED_BYTES else 0)


def _unpacked(block: bytes) -> list[Entry]:
    fields = (line.split(" ", 3) for line in zlib.decompress(block).decode().split("\n"))
    return [Entry(int(epoch), int(seq), name, data) for epoch, seq, name, data in fields]


BATCH_CHARACTERS = 8_000
"""How much a reader takes at a time: a slow reader, or one that does not read at all, holds no more than this."""


class GrowingLog:
    """Read by any number of clients at their own pace. A client has no queue, only a cursor.

    One timer per log wakes idle readers. A timer per wait would be set and cancelled for every token.
    """

    def __init__(self, idle_seconds: float = events.IDLE_SECONDS) -> None:
        """A reader for which no entry is added for `idle_seconds` gets an empty batch."""
        self._idle_seconds = idle_seconds
        self._entries = PackedEntries()
        self._grown = asyncio.Event()
        self._released = False
        self._readers = 0
        self._grew_at = 0.0
        self._idle_timer: asyncio.TimerHandle

    def release_readers(self) -> None:
        """Readers get the entries that are there, and then their streams end."""
        self._released = True
        self._wake_readers()

    def _add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._entries.add(entry)
        self._grew_at = time.monotonic()
        self._wake_readers()

    def _wake_readers(self) -> None:
        self._grown.set()
        self._grown.clear()  # readers that wait now are woken; one that comes later waits

    async def follow(self, after: Cursor) -> AsyncGenerator[Batch]:
        """The entries after `after` as they are added; an empty batch when none was added for `idle_seconds`.

        Raises:
            LogGoneError: an entry between `after` and the next one is missing.
        """
        woken = False
        self._add_reader()
        try:
            while True:
                if entries := self._entries.since(after):
                    for batch in batches_of(entries, after):
                        yield batch
                    after = entries[-1].cursor
                    woken = False  # more may have come meanwhile
                elif self._released:
                    return
                elif woken:
                    yield ()
                    woken = False
                else:
                    await self._grown.wait()
                    woken = True
        finally:
            self._remove_reader()

    def _add_reader(self) -> None:
        """The timer runs while there is a reader."""
        self._readers += 1
        if self._readers == 1:
            self._tick_in(self._idle_seconds)

    def _remove_reader(self) -> None:
        self._readers -= 1
        if self._readers == 0:
            self._idle_timer.cancel()

    def _tick_in(self, seconds: float) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        left = self._grew_at + self._idle_seconds - time.monotonic()
        if left <= 0:
            self._wake_readers()
        self._tick_in(left if left > 0 else self._idle_seconds)


def batches_of(entries: Iterable[Entry], after: Cursor) -> Iterator[list[Frame]]:
    """The entries for a reader at `after`, about BATCH_CHARACTERS at a time.

    Raises:
        LogGoneError: an entry is missing between `after` and the first, or between two of them.
    """
    batch: list[Frame] = []
    size = 0
    for entry in entries:
        if not entry.follows(after):
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
