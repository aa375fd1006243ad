"""The demo's effects: an append-only log that is also the demo's only state.

One line of JSON per effect, on disk (fsync) before the tool answers. Whoever wants to know how often a tool really ran
counts lines; the optional `token` of an effect tells one wanted effect from another.
"""

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Effect = dict[str, Any]

FIRST_NOTES = ("Buy milk", "Water the plants", "Read the protocol page")


@dataclass
class State:
    """What the effects so far add up to."""

    counters: Counter[str] = field(default_factory=Counter[str])
    notes: list[str] = field(default_factory=lambda: list(FIRST_NOTES))

    def apply(self, effect: Effect) -> None:
        match effect:
            case {"effect": "increment_counter", "counter": str(name), "value": int(value)}:
                self.counters[name] = value
            case {"effect": "add_note", "note": str(note)}:
                self.notes.append(note)
            case {"effect": "delete_everything"}:
                self.notes.clear()
            case _:
                pass  # the steps of a slow job are facts for readers of the log, they change nothing


class EffectLog:
    """The log at `path`, made on first use. Threads and processes may share it: every access holds the file's lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = State()
        self._read_up_to = 0

    def record(self, decide: Callable[[State], Effect]) -> Effect:
        """Append what `decide` makes of the current state, durably, and return it with its time."""
        with self._locked() as (fd, state):
            effect = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **decide(state)}
            os.write(fd, json.dumps(effect, ensure_ascii=False).encode() + b"\n")
            os.fsync(fd)
            return effect

    def notes(self) -> list[str]:
        with self._locked() as (_, state):
            return list(state.notes)

    @contextmanager
    def _locked(self) -> Generator[tuple[int, State]]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # A descriptor per access, because flock does not exclude two users of the same one.
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._catch_up(fd)
            yield fd, self._state
        finally:
            os.close(fd)

    def _catch_up(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        if size < self._read_up_to:  # somebody removed or emptied the log: begin again with it
            self._state, self._read_up_to = State(), 0
        for line in os.pread(fd, size - self._read_up_to, self._read_up_to).splitlines():
            self._state.apply(json.loads(line))
        self._read_up_to = size
