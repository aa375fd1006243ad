"""The port of encoders, which say the events of a turn in another protocol.

An encoder is pure: no I/O, no clock, no state but its own. It is fed the log of one turn from its first event on, so
what it returns is the same for every reader, at every engine, live or replayed.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from dialog_engine.chat.events import Frame

EPOCH_SHIFT = 32
"""The number of an output is its epoch, shifted by so many bits, plus its place in the epoch, from 1 on."""


class Output(msgspec.Struct, frozen=True, gc=False):
    """What follows from one event. `data` is sent as it is. `last`: the stream of a request ends behind it, because the
    turn has ended, or goes on with another request."""

    number: int
    data: bytes
    last: bool = False

    @property
    def epoch(self) -> int:
        """The epoch of its event."""
        return self.number >> EPOCH_SHIFT


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

    def next(self, frame: Frame) -> int:
        """The number of the next output of this event."""
        epoch = frame.id.partition("-")[0]
        if epoch != self._epoch:
            self._epoch, self._last = epoch, int(epoch) << EPOCH_SHIFT
        self._last += 1
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
