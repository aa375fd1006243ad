"""The entries of a log in memory: the newest as they are, the others packed, since there are many logs."""

import zlib
from bisect import bisect_right
from operator import attrgetter

from dialog_engine.chat.frames import START, Cursor
from dialog_engine.streams.log_entries import Entry

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
