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
"""This is in the numbers of outputs behind a log that was lost in the middle of its epoch: where that was differs from
reader to reader, and so do the outputs."""


class Output(msgspec.Struct, frozen=True, gc=False):
    """What follows from one event. `data` is sent as it is. `last`: the stream of a request ends behind it, because the
    turn has ended, or goes on with another request."""

    number: int
    data: bytes
    last: bool = False

    def is_new(self, after: int) -> bool:
        """Whether a client that has got the outputs up to this number lacks it. One whose log is gone lacks the end of
        the request only, and so does one that has got what no other reader gets."""
        epoch, seen = self.number >> EPOCH_SHIFT, after >> EPOCH_SHIFT
        if (after & _OWN and epoch == seen) or (after and epoch >= REBUILT > seen):
            return self.last
        return self.number > after


class Encoder(Protocol):
    """Encodes one turn."""

    def feed(self, frame: Frame) -> Iterable[Output]:
        """What follows from the next event of the log. Numbers rise."""
        ...


class Numbers:
    """The numbers of the outputs of one turn."""

    def __init__(self) -> None:
        self._epoch = ""
        self._last = 0

    def read(self, frame: Frame) -> None:
        """Note the next event of the log, whether it has outputs or not."""
        epoch = frame.id.partition("-")[0]
        if epoch != self._epoch:
            self._epoch, self._last = epoch, _begin(Cursor.parse(frame.id))
        if frame.says_lost and self._last >> EPOCH_SHIFT < REBUILT:
            self._last |= _OWN

    def next(self) -> int:
        """The number of the next output of that event."""
        self._last += 1
        return self._last


def _begin(first: Cursor) -> int:
    """What the numbers of an epoch begin behind, by the first event of it that is read."""
    if first.epoch >= events.REBUILT_EPOCH:
        return first.epoch - events.REBUILT_EPOCH + REBUILT << EPOCH_SHIFT
    return first.epoch << EPOCH_SHIFT | (_OWN if first.seq >= events.REBUILT_SEQ else 0)


def delta_of(frame: Frame) -> str:
    """The text of a `text` or `reasoning` event, as the inside of a JSON string. The log writes `{"delta":"…"}`."""
    return frame.data[len('{"delta":"') : -len('"}')]


def text_of(pieces: Iterable[str]) -> str:
    """The text of such pieces together."""
    return msgspec.json.decode(f'"{"".join(pieces)}"', type=str)


def data_of(frame: Frame) -> dict[str, Any]:
    """The data of an event."""
    return msgspec.json.decode(frame.data, type=dict[str, Any])
