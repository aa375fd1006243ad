"""The port of encoders, which say the events of a turn in another protocol.

An encoder is pure: no I/O, no clock, no state but its own. It is fed the log of one turn from its first event on, so
what it returns is the same for every reader, at every engine, live or replayed.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.events import Cursor, Frame

EPOCH_SHIFT = 32
"""The number of an output is its epoch, shifted by so many bits, plus its place in the epoch, from 1 on. Every number
is below 2^53, up to which JavaScript counts exactly."""
REBUILT = 1 << 20
"""What the numbers have for the epoch of a log that was rebuilt (`events.REBUILT_EPOCH`), and this plus 1 for the next.
"""
_OWN = 1 << 31
"""This is in the numbers of outputs behind a log that was lost while it was read, or rebuilt while its turn was parked:
where that was differs from reader to reader, and so do the outputs."""
_LATE = 1 << 30
"""This is in the numbers of a reader whose log begins with a later epoch: what is new in that differs from what is new
behind the earlier ones."""
_PART_SHIFT = 12
"""Numbers that differ in their lower bits only are of one part: outputs of the same item, none of which completes it.
A longer part goes on in the numbers of the next."""


class Output(msgspec.Struct, frozen=True, gc=False):
    """What follows from one event. `data` is sent as it is. `last`: the stream of a request ends behind it, because the
    turn has ended, or goes on with another request."""

    number: int
    data: bytes
    last: bool = False


class Lacking:
    """Which outputs a client lacks that has got those up to the number `after` (0: none), maybe from another reader."""

    def __init__(self, after: int) -> None:
        self._after = after
        self._found = 0
        """The last number of this reader up to `after`."""

    def has(self, output: Output, *, ends: bool) -> bool:
        """Whether the next output is one of them. `ends`: the stream ends behind it.

        A client that has got what this reader does not have lacks the end only, which says everything: the rest would
        repeat some of it. But pieces that died with their engine are taken back: the item that they belong to is open.
        """
        if output.number > self._after:
            return output.last or self._goes_on()
        self._found = output.number
        return ends and self._found != self._after

    def _goes_on(self) -> bool:
        return not self._after & _OWN and self._found >> _PART_SHIFT == self._after >> _PART_SHIFT


class Encoder(Protocol):
    """Encodes one turn."""

    def feed(self, frame: Frame) -> Iterable[Output]:
        """What follows from the next event of the log. Numbers rise."""
        ...


class Numbers:
    """The numbers of the outputs of one turn."""

    def __init__(self) -> None:
        self._epoch = ""
        self._mark = 0
        """What is in all numbers from now on: _OWN or _LATE, where either is true."""
        self._last = 0

    def read(self, frame: Frame) -> None:
        """Note the next event of the log, whether it has outputs or not."""
        epoch = frame.id.partition("-")[0]
        if epoch != self._epoch:
            self._enter(Cursor.parse(frame.id), is_first=not self._epoch)
            self._epoch = epoch
        if frame.says_lost:
            self._mark = _OWN
            self._last |= _OWN

    def _enter(self, place: Cursor, *, is_first: bool) -> None:
        """An epoch begins at this place, the first one that is read or another."""
        epoch = place.epoch if (rebuilt := place.epoch - events.REBUILT_EPOCH) < 0 else REBUILT + rebuilt
        if is_first and (1 < epoch < REBUILT or place.seq >= events.REBUILT_SEQ):
            self._mark = _LATE
        own = _OWN if place.seq >= events.REBUILT_SEQ else 0
        self._last = epoch << EPOCH_SHIFT | self._mark | own

    def next(self, *, apart: bool = False) -> int:
        """The number of the next output of that event. `apart`: a part begins with it."""
        self._last = (self._last | (1 << _PART_SHIFT) - 1 if apart else self._last) + 1
        return self._last


def delta_of(frame: Frame) -> str:
    """The text of a `text` or `reasoning` event, as the inside of a JSON string. The log writes `{"delta":"…"}`."""
    return frame.data[len('{"delta":"') : -len('"}')]


def text_of(pieces: Iterable[str]) -> str:
    """The text of such pieces together."""
    return msgspec.json.decode(f'"{"".join(pieces)}"', type=str)


def data_of(frame: Frame) -> dict[str, Any]:
    """The data of an event."""
    return msgspec.json.decode(frame.data, type=dict[str, Any])
