"""A turn's log as its readers see it: frames with ids, and cursors to go on from."""

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

_CURSOR = re.compile(r"(\d{1,15})-(\d{1,15})")


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


class LogGoneError(Exception):
    """There is no log of this turn, or it cannot be read now."""


class TurnFrames(Protocol):
    """Reads the logs of turns, whoever runs them."""

    def follow(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Frame]:
        """What comes after `after`, as it comes, to the end of the turn.

        Raises:
            LogGoneError: there is nothing to read it from.
        """
        ...
