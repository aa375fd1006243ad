"""A turn's log as its readers see it: frames with ids, and cursors to go on from."""

import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dialog_engine.model import Turn

_CURSOR = re.compile(r"(\d{1,15})-(\d{1,15})")

IDLE_SECONDS = 15.0
"""How long a reader waits for news before it is told that there are none."""


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A place in a log: everything up to and including this id was seen. The id is `<epoch>-<seq>`."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """The cursor in `text`. Raises ValueError when it is none."""
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not an event id: expected <epoch>-<seq>, as in the id of an event")
        return cls(int(match[1]), int(match[2]))


START = Cursor(0, 0)


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as a client gets it: its id, its name, its JSON."""

    id: str
    name: str
    data: str


Batch = Sequence[Frame]
"""Frames that were there at the same time, oldest first."""


class LogGoneError(Exception):
    """What comes next in the log of a turn is not there, or cannot be read now."""


class TurnFrames(Protocol):
    """Reads the logs of turns, whoever runs them."""

    def follow(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Batch]:
        """What comes after `after`, as it comes; an empty batch each time nothing came for IDLE_SECONDS.

        It ends after the turn's last event. It ends without that when the reader shall ask again, here or elsewhere:
        this engine is going down, or another one has taken the turn over.

        Raises:
            LogGoneError: something is missing between `after`, or what was read last, and what is there.
        """
        ...

    def kept(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Batch]:
        """What is there now after `after`; nothing is waited for.

        Raises:
            LogGoneError: as above, or there is no such log, or it cannot be read now.
        """
        ...

    async def newest(self, turn_id: str) -> Frame | None:
        """The last event there is now; None when there is none, or it cannot be read now."""
        ...

    def running(self, turn_id: str) -> Turn | None:
        """The turn, when this engine writes its log and has not come to the end."""
        ...
