"""What really happened, as the processes of a scenario write it down: lines of one append-only file."""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path


class What(StrEnum):
    """What is noted, under the token of a tool call or the name of a turn."""

    CALLED = "called"
    """The MCP server has the call."""
    EFFECT = "effect"
    """The tool took effect."""
    CANCELLED = "cancelled"
    """The MCP server was notified that the call was cancelled."""
    ENDED = "ended"
    """The tool does nothing more, whatever came of it."""
    LEFT = "left"
    """The model's stream was closed at the other end before it was whole."""
    INVALID = "invalid"
    """The model was sent a conversation that a provider would refuse."""
    TAKEN = "taken"
    """The store took a write of an engine that did not own the turn any more."""
    FENCED = "fenced"
    """The store refused such a write."""
    LOG_REFUSED = "log refused"
    """Redis refused such an entry of the turn's log."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line of a process. `at` is in seconds on the monotonic clock, which all processes of a machine share."""

    what: What
    token: str
    epoch: int = 0
    """Of the write of a turn."""
    pid: int = field(default_factory=os.getpid)
    at: float = field(default_factory=time.monotonic)


class Notes:
    """Writes them. Several processes may have the same file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, what: What, token: str, epoch: int = 0) -> None:
        """It is in the file when this returns, and outlives the process."""
        os.write(self._file, json.dumps(asdict(Note(what, token, epoch))).encode() + b"\n")


def notes_in(path: Path) -> list[Note]:
    """Every note so far. A line that is just being written counts with the next reading."""
    whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
    lines = map(json.loads, whole.splitlines())
    return [Note(What(line.pop("what")), **line) for line in lines]


class Noted:
    def __init__(self, notes: Iterable[Note]) -> None:
        self._times: dict[tuple[What, str], list[float]] = {}
        for note in notes:
            self._times.setdefault((note.what, note.token), []).append(note.at)

    def times(self, what: What, token: str) -> list[float]:
        return self._times.get((what, token), [])

    def tokens(self, what: What) -> list[str]:
        return [token for noted, token in self._times if noted is what]
