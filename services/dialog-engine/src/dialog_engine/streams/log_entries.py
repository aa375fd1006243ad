"""The entries of a turn's log. Pure: how deltas are merged, and what is left of an entry for a given reader."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.frames import Cursor, Frame
from dialog_engine.model import ReasoningDelta, TextDelta, TurnEvent


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, or a run of deltas, with the numbers `first` to `last` of its epoch.

    `data` is the event as JSON, or the text of the run. `cuts` is None for an event; for a run it says where in its
    text each piece but the first begins, one piece per number: a reader that saw some of them gets exactly the rest.
    """

    epoch: int
    first: int
    last: int
    name: str
    data: str = ""
    cuts: Sequence[int] | None = None

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
        if self.cuts is not None:
            unseen = self.data[self._begin(place.seq + 1) if place.epoch == self.epoch else 0 :]
            data = msgspec.json.encode({"delta": unseen}).decode()
        return Frame(f"{self.epoch}-{self.last}", self.name, data)

    @property
    def field(self) -> tuple[str, str]:
        """The name and the text of the one field that it has in a Redis stream, beside that of its event."""
        return ("data", self.data) if self.cuts is None else ("pieces", msgspec.json.encode(self.pieces).decode())

    @property
    def pieces(self) -> tuple[str, ...]:
        """The deltas of a run, one per number."""
        if self.cuts is None:
            return ()
        ends = (*self.cuts, len(self.data))
        return tuple(self.data[begin:end] for begin, end in zip((0, *self.cuts), ends, strict=True))

    def parted(self, number: int) -> "tuple[Entry, Entry]":
        """A run that goes on after `number`, as two: up to it, and from there on."""
        cuts, at = self.cuts or (), self._begin(number + 1)
        count = number - self.first + 1
        head = replace(self, last=number, data=self.data[:at], cuts=_compact(cuts[: count - 1]))
        rest = _compact([cut - at for cut in cuts[count:]])
        return head, replace(self, first=number + 1, data=self.data[at:], cuts=rest)

    def _begin(self, number: int) -> int:
        """Where in the text the piece with that number begins."""
        return self.cuts[number - self.first - 1] if self.cuts and number > self.first else 0


def run_of(epoch: int, last: int, name: str, pieces: Sequence[str]) -> Entry:
    """Deltas that come one after the other, the last one with number `last`."""
    cuts: list[int] = []
    length = 0
    for piece in pieces[:-1]:
        length += len(piece)
        cuts.append(length)
    return Entry(epoch, last - len(pieces) + 1, last, name, "".join(pieces), _compact(cuts))


def _compact(cuts: Sequence[int]) -> Sequence[int]:
    """Many logs are in memory, with all the pieces of their answers."""
    return array("I", cuts) if cuts else ()


def entry_of(epoch: int, number: int, event: TurnEvent) -> Entry:
    """`event` as entry `number` of its epoch."""
    match event:
        case TextDelta(text):
            return run_of(epoch, number, events.TEXT, (text,))
        case ReasoningDelta(text):
            return run_of(epoch, number, events.REASONING, (text,))
        case _:
            name, data = events.encode(event)
            return Entry(epoch, number, number, name, msgspec.json.encode(data).decode())


def entry_from_fields(place: Cursor, fields: dict[bytes, bytes]) -> Entry:
    """The entry at `place` of a Redis stream."""
    name = fields[b"event"].decode()
    if b"pieces" not in fields:
        return Entry(place.epoch, place.seq, place.seq, name, fields[b"data"].decode())
    pieces = msgspec.json.decode(fields[b"pieces"], type=tuple[str, ...])
    return run_of(place.epoch, place.seq, name, pieces)


def merged(entries: list[Entry], at_most: int = sys.maxsize) -> list[Entry]:
    """The same entries with neighbouring deltas of one kind in one, as long as nothing is missing between them, nothing
    is there twice, and a run has no more than `at_most` characters."""
    if len(entries) < 2:
        return entries
    result: list[Entry] = []
    run: list[Entry] = []
    length = 0
    for entry in entries:
        length += len(entry.data)
        if not (run and _adjoins(run[-1], entry) and length <= at_most):
            if run:
                result.append(_joined(run))
            run, length = [], len(entry.data)
        run.append(entry)
    return [*result, _joined(run)]


def _adjoins(before: Entry, entry: Entry) -> bool:
    """Whether two entries are deltas of one kind, the one right after the other."""
    if before.cuts is None or entry.cuts is None or before.name != entry.name:
        return False
    return entry.epoch == before.epoch and entry.first == before.last + 1


def _joined(run: list[Entry]) -> Entry:
    if len(run) == 1:
        return run[0]
    cuts = array("I")
    length = 0
    for number, entry in enumerate(run):
        if number:
            cuts.append(length)
        cuts.extend(length + cut for cut in entry.cuts or ())
        length += len(entry.data)
    text = "".join(entry.data for entry in run)
    return Entry(run[0].epoch, run[0].first, run[-1].last, run[0].name, text, cuts)
