"""The effects of the demo tools: an append-only log that is also the demo's only state.

The log has one line of JSON per effect, synced to disk before the tool answers. The number of lines is the number of
times a tool really ran; the optional `token` identifies an effect.
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
    """The state that results from the effects so far."""

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
                pass  # the steps of a slow job are only logged, they change no state


class EffectLog:
    """The log at `path`, created on first use. Threads and processes may share it: every access locks the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = State()
        self._read_up_to = 0

    def record(self, decide: Callable[[State], Effect]) -> Effect:
        """Append the effect that `decide` derives from the current state, durably, and return it with its time."""
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
        # One descriptor per access: flock does not exclude two users of the same descriptor.
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            self._catch_up(fd)
            yield fd, self._state
        finally:
            os.close(fd)

    def _catch_up(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        if size < self._read_up_to:  # the log was removed or truncated: start again
            self._state, self._read_up_to = State(), 0
        for line in os.pread(fd, size - self._read_up_to, self._read_up_to).splitlines():
            self._state.apply(json.loads(line))
        self._read_up_to = size
