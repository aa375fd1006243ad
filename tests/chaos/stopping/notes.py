"""What really happened, as the servers of the harness wrote it down: lines of one append-only file.

Times are seconds on the monotonic clock, which is the same in every process of a machine.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class What(StrEnum):
    """What is noted, under the token of a tool call or of a turn."""

    CALLED = "called"
    """The MCP server has the call."""
    EFFECT = "effect"
    """The tool took effect."""
    CANCELLED = "cancelled"
    """The MCP server was notified that the call was cancelled."""
    ANSWERED = "answered"
    ENDED = "ended"
    """The tool does nothing more, whatever came of it."""
    LEFT = "left"
    """The model's stream was closed at the other end before it was whole."""
    INVALID = "invalid"
    """The model was sent a conversation that a provider would refuse."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line."""

    what: What
    token: str
    at: float


class Notes:
    """Writes them. Several processes may have the same file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, what: What, token: str) -> None:
        """It is in the file when this returns."""
        line = {"what": what, "token": token, "at": time.monotonic()}
        os.write(self._file, json.dumps(line).encode() + b"\n")


class Noted:
    """All notes so far."""

    def __init__(self, notes: Iterable[Note]) -> None:
        self._notes: dict[tuple[What, str], list[float]] = {}
        for note in notes:
            self._notes.setdefault((note.what, note.token), []).append(note.at)

    @classmethod
    def read(cls, path: Path) -> "Noted":
        """What is in the file; a line that is just being written counts with the next reading."""
        whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
        lines = map(json.loads, whole.splitlines())
        return cls(Note(What(line["what"]), line["token"], line["at"]) for line in lines)

    def times(self, what: What, token: str) -> list[float]:
        """When this happened."""
        return self._notes.get((what, token), [])

    def tokens(self, what: What) -> list[str]:
        """To whom it happened."""
        return [token for noted, token in self._notes if noted is what]
