"""The entries of a turn's log. Pure: how deltas are merged, and what is left of an entry for a given reader."""

from dataclasses import dataclass

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.frames import Cursor, Frame
from dialog_engine.model import ReasoningDelta, TextDelta, TurnEvent


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, or a run of deltas, with the numbers `first` to `last` of its epoch.

    A run keeps its pieces, one per number: a reader that saw some of them gets exactly the rest.
    """

    epoch: int
    first: int
    last: int
    name: str
    data: str = ""
    pieces: tuple[str, ...] = ()

    @property
    def cursor(self) -> Cursor:
        """The place of one who has read it."""
        return Cursor(self.epoch, self.last)

    def is_after(self, place: Cursor) -> bool:
        """Whether a reader at `place` needs it, or a part of it."""
        return self.epoch > place.epoch or (self.epoch == place.epoch and self.last > place.seq)

    def goes_on_from(self, place: Cursor) -> bool:
        """Whether nothing is missing between `place` and this. An epoch that begins tells all that matters again."""
        if self.epoch == place.epoch:
            return self.first <= place.seq + 1
        return self.epoch > place.epoch and self.first == 1

    def frame(self, place: Cursor) -> Frame:
        """What a reader at `place` still needs of this entry."""
        data = self.data
        if self.pieces:
            seen = place.seq - self.first + 1 if place.epoch == self.epoch else 0
            data = msgspec.json.encode({"delta": "".join(self.pieces[max(0, seen) :])}).decode()
        return Frame(f"{self.epoch}-{self.last}", self.name, data)

    @property
    def field(self) -> tuple[str, str]:
        """The name and the text of the one field that it has in a Redis stream, beside that of its event."""
        return ("pieces", msgspec.json.encode(self.pieces).decode()) if self.pieces else ("data", self.data)


def entry_of(epoch: int, number: int, event: TurnEvent) -> Entry:
    """`event` as entry `number` of its epoch."""
    match event:
        case TextDelta(text):
            return Entry(epoch, number, number, events.TEXT, pieces=(text,))
        case ReasoningDelta(text):
            return Entry(epoch, number, number, events.REASONING, pieces=(text,))
        case _:
            name, data = events.encode(event)
            return Entry(epoch, number, number, name, msgspec.json.encode(data).decode())


def entry_from_fields(place: Cursor, fields: dict[bytes, bytes]) -> Entry:
    """The entry at `place` of a Redis stream."""
    name = fields[b"event"].decode()
    if b"pieces" not in fields:
        return Entry(place.epoch, place.seq, place.seq, name, fields[b"data"].decode())
    pieces = msgspec.json.decode(fields[b"pieces"], type=tuple[str, ...])
    return Entry(place.epoch, place.seq - len(pieces) + 1, place.seq, name, pieces=pieces)


def merged(entries: list[Entry]) -> list[Entry]:
    """The same entries with neighbouring deltas of one kind in one, as long as nothing is missing between them."""
    if len(entries) < 2:
        return entries
    result: list[Entry] = []
    run: list[Entry] = []

    def flush() -> None:
        if len(run) == 1:
            result.append(run[0])
        elif run:
            pieces = tuple(piece for entry in run for piece in entry.pieces)
            result.append(Entry(run[0].epoch, run[0].first, run[-1].last, run[0].name, pieces=pieces))
        run.clear()

    for entry in entries:
        if run and (not entry.pieces or entry.name != run[0].name or not entry.goes_on_from(run[-1].cursor)):
            flush()
        if entry.pieces:
            run.append(entry)
        else:
            result.append(entry)
    flush()
    return result
