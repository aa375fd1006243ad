"""The entries of a turn's log: the same in memory, in Redis and on the wire. Pure."""

import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from dialog_engine.chat.frames import Cursor, Frame


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
