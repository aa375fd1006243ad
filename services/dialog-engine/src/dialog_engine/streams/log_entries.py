"""The entries of a turn's log. Pure: how deltas are merged, and what is left of an entry for a given reader."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.frames import Frame
from dialog_engine.model import ReasoningDelta, TextDelta, TurnEvent


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, or a run of deltas, with the numbers `first` to `last` of its epoch.

    A run keeps its pieces, one per number: a reader that saw some of them gets exactly the rest.
    """

    first: int
    last: int
    name: str
    data: str = ""
    pieces: tuple[str, ...] = ()

    def frame(self, epoch: int, after: int) -> Frame:
        """What a reader that saw everything up to number `after` still needs of this entry."""
        data = self.data
        if self.pieces:
            rest = self.pieces[max(0, after - self.first + 1) :]
            data = msgspec.json.encode({"delta": "".join(rest)}).decode()
        return Frame(f"{epoch}-{self.last}", self.name, data)

    @property
    def fields(self) -> dict[str, str]:
        """The entry as fields of a Redis stream."""
        if not self.pieces:
            return {"event": self.name, "data": self.data}
        return {"event": self.name, "pieces": msgspec.json.encode(self.pieces).decode()}


def entry_of(number: int, event: TurnEvent) -> Entry:
    """`event` as entry `number`."""
    match event:
        case TextDelta(text):
            return Entry(number, number, events.TEXT, pieces=(text,))
        case ReasoningDelta(text):
            return Entry(number, number, events.REASONING, pieces=(text,))
        case _:
            name, data = events.encode(event)
            return Entry(number, number, name, msgspec.json.encode(data).decode())


def entry_from_fields(last: int, fields: dict[bytes, bytes]) -> Entry:
    """The entry in the fields of a Redis stream."""
    name = fields[b"event"].decode()
    if b"pieces" not in fields:
        return Entry(last, last, name, fields[b"data"].decode())
    pieces = msgspec.json.decode(fields[b"pieces"], type=tuple[str, ...])
    return Entry(last - len(pieces) + 1, last, name, pieces=pieces)


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """The same entries with neighbouring deltas of one kind in one."""
    result: list[Entry] = []
    run: list[Entry] = []

    def flush() -> None:
        if len(run) == 1:
            result.append(run[0])
        elif run:
            pieces = tuple(piece for entry in run for piece in entry.pieces)
            result.append(Entry(run[0].first, run[-1].last, run[0].name, pieces=pieces))
        run.clear()

    for entry in entries:
        if run and (not entry.pieces or entry.name != run[0].name):
            flush()
        if entry.pieces:
            run.append(entry)
        else:
            result.append(entry)
    flush()
    return result
