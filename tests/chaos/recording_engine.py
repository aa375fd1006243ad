"""`python -m tests.chaos.recording_engine [--idle] SECONDS NOTES`: the engine, with a lease of SECONDS.

It does not check whether its turns were adopted by another engine, so that only the fences stop its writes, and records
in the file NOTES what became of each write.

With `--idle` it adopts no turns: a turn that moves from one stopped engine to the next would end with `TURN_CRASHES`.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from dialog_engine.chat import ownership
from dialog_engine.chat.ports import SeenEngine
from dialog_engine.errors import TurnFencedError
from dialog_engine.main import serve
from dialog_engine.model import Turn
from dialog_engine.storage import database
from dialog_engine.storage.engines import SqlEngines
from dialog_engine.storage.turns import SqlTurns

OWNED_ELSEWHERE = "is owned by another engine in epoch"
"""What the turn logs report of an entry that Redis has refused: the turn's id comes with it."""


class Became(StrEnum):
    """What became of a write."""

    PASSED = "passed"
    FENCED = "fenced"
    LOG_REFUSED = "log refused"


@dataclass(frozen=True, slots=True)
class Note:
    """One write of a turn in one epoch by the engine with this process id, at this monotonic time in seconds.

    A log's epoch is not noted: 0.
    """

    pid: int
    turn: str
    epoch: int
    became: Became
    at: float


def notes_in(path: Path) -> list[Note]:
    """Every note so far."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [msgspec.json.decode(line, type=Note) for line in whole.splitlines()]


Take = Callable[[str, int, Became], None]


def _taking(path: Path) -> Take:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def take(turn: str, epoch: int, became: Became) -> None:
        note = Note(os.getpid(), turn, epoch, became, time.monotonic())
        os.write(file, msgspec.json.encode(note) + b"\n")

    return take


def _watch_writes(take: Take) -> None:
    check, finish = database._check, SqlTurns.finish  # pyright: ignore[reportPrivateUsage]

    def checked(changed: int, turn: Turn) -> None:
        take(turn.turn_id, turn.epoch, Became.PASSED if changed else Became.FENCED)
        check(changed, turn)

    async def finished(self: SqlTurns, turn: Turn, *args: Any) -> int | None:
        try:
            number = await finish(self, turn, *args)
        except TurnFencedError:
            take(turn.turn_id, turn.epoch, Became.FENCED)
            raise
        take(turn.turn_id, turn.epoch, Became.PASSED)
        return number

    database._check = checked  # pyright: ignore[reportPrivateUsage]
    SqlTurns.finish = finished  # pyright: ignore[reportAttributeAccessIssue]


class _RefusedLogs(logging.Handler):
    def __init__(self, take: Take) -> None:
        super().__init__(logging.WARNING)
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        if OWNED_ELSEWHERE in record.getMessage() and isinstance(record.args, tuple):
            self._take(str(record.args[0]), 0, Became.LOG_REFUSED)


def _notice_nothing() -> None:
    async def none(self: SqlEngines, turns: Sequence[Turn]) -> Sequence[str]:
        return []

    SqlEngines.fenced = none


def _adopt_nothing() -> None:
    async def no_engines(self: SqlEngines) -> Sequence[SeenEngine]:
        return []

    SqlEngines.others = no_engines


if __name__ == "__main__":
    if "--idle" in sys.argv:
        sys.argv.remove("--idle")
        _adopt_nothing()
    notes = _taking(Path(sys.argv.pop()))
    ownership.LEASE_SECONDS = float(sys.argv.pop())
    ownership.RENEW_SECONDS = ownership.LEASE_SECONDS / 4
    ownership.LOOK_SECONDS = ownership.LEASE_SECONDS / 10
    _watch_writes(notes)
    logging.getLogger("dialog_engine.event_log.turn_logs").addHandler(_RefusedLogs(notes))
    _notice_nothing()
    serve()
