"""The store of an engine in memory: SQLite in the thread of the test, whose units of work can be held and refused."""

import asyncio
import sqlite3
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from dialog_engine.model import ToolCall, Turn, TurnFailed, Usage
from dialog_engine.storage import schemas
from dialog_engine.storage.database import Row, named
from dialog_engine.storage.sqlite import SqliteConnection, SqliteDatabase
from dialog_engine.storage.sqlite_file import DIALECT
from dialog_engine.storage.store import Store, StoreTransaction
from dialog_engine.tool_calls.values import Asked, Question
from plugins_contract.messages import EVENT_TYPE
from tests.support.engine_stores import EngineStore

T = TypeVar("T")
_UNIX_EPOCH = 2440587.5
_DAY_MS = 86_400_000


class _InThisThread(SqliteConnection):
    """A connection that does at once what it is given."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(lambda: connection, iter_chunk_size=64)
        self._here = connection

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return work(self._here)

    def submit(self, work: Callable[[sqlite3.Connection], None]) -> None:
        work(self._here)


class Clock:
    """The clock of a database: `ahead_ms` milliseconds ahead of that of the machine."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def julian_day(self, _: str) -> float:
        """What SQLite takes as the time."""
        return _UNIX_EPOCH + self.now_ms() / _DAY_MS


class MemoryDatabase(SqliteDatabase):
    def __init__(self) -> None:
        self.clock = Clock()
        self._file = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._file.close)
        self._file.create_function("julianday", 1, self.clock.julian_day)
        self._file.executescript(schemas.schema(DIALECT))
        self._file.execute("PRAGMA foreign_keys=ON")
        connection = _InThisThread(self._file)
        super().__init__(connection, connection, lambda: 0, max_pause_ms=0)

    def rows(self, sql: str, *parameters: Any) -> list[Row]:
        """Run a statement with `?` for its parameters beside all units; its rows."""
        cursor = self._file.execute(sql, parameters)
        return named([column[0] for column in cursor.description or ()], cursor.fetchall())


class HeldStore(Store):
    """Runs one unit after the other: one that was begun ends, whoever waits for it.

    `hold["add_round"] = asyncio.Event()` keeps the units of that name waiting, `refuse["finish"] = error` makes them
    fail; while `away` is set, everything raises it, `refused` times until now. `begun` lists the units that were asked
    for.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.hold: dict[str, asyncio.Event] = {}
        self.refuse: dict[str, Exception] = {}
        self.begun: list[str] = []
        self.away: Exception | None = None
        self.refused = 0
        self._writer = asyncio.Lock()

    async def write(self, unit: Callable[[StoreTransaction], T]) -> T:
        what = str(getattr(unit, "__qualname__", "")).split(".")[1]
        self.begun.append(what)
        return await asyncio.shield(asyncio.create_task(self._write(what, unit), name=f"commit of {what}"))

    async def read(self, sql: str, *numbered: Any, **named: Any) -> list[Row]:
        self._check()
        return await super().read(sql, *numbered, **named)

    async def _write(self, what: str, unit: Callable[[StoreTransaction], T]) -> T:
        self._check()
        async with self._writer:
            if what in self.hold:
                await self.hold[what].wait()
            if what in self.refuse:
                raise self.refuse[what]
            return await super().write(unit)

    def _check(self) -> None:
        if self.away is not None:
            self.refused += 1
            raise self.away


class MemoryStore(EngineStore):
    """What one engine keeps in memory, and how a test looks into it."""

    def __init__(self, engine_id: str = "engine", database: MemoryDatabase | None = None) -> None:
        self.memory = database or MemoryDatabase()
        super().__init__(self.memory, engine_id, kind=HeldStore)
        assert isinstance(self.store, HeldStore)
        self.held = self.store
        self.hold, self.refuse, self.begun = self.held.hold, self.held.refuse, self.held.begun

    def turn(self, turn: Turn) -> Row:
        [row] = self.memory.rows("SELECT * FROM turns WHERE turn_id = ?", turn.turn_id)
        return row

    def status(self, turn: Turn) -> str:
        return self.turn(turn).status

    def failure(self, turn: Turn) -> TurnFailed | None:
        row = self.turn(turn)
        return TurnFailed(row.error_code, row.error_message) if row.error_code else None

    def usage(self, turn: Turn) -> Usage:
        row = self.turn(turn)
        return Usage(row.input_tokens, row.output_tokens, bool(row.estimated))

    def requests(self) -> list[Row]:
        """The rows of the outbox that run calls."""
        return self.memory.rows("SELECT * FROM outbox WHERE event_type = ? ORDER BY seq", EVENT_TYPE)

    def unanswered(self, turn: Turn) -> Sequence[str]:
        found = "SELECT correlation_id FROM tool_calls WHERE turn_id = ? AND outcome IS NULL"
        return [row.correlation_id for row in self.memory.rows(found, turn.turn_id)]

    def asked(self, correlation_id: str) -> tuple[str, Asked] | None:
        """The turn and the question of a call that waits for approval."""
        found = (
            "SELECT c.*, question FROM tool_calls c JOIN approvals USING (correlation_id) JOIN turns USING (turn_id)"
            " WHERE correlation_id = ? AND status = 'running' AND outcome IS NULL AND decision IS NULL"
        )
        for row in self.memory.rows(found, correlation_id):
            call = ToolCall(row.tool_call_id, row.correlation_id, row.name, row.arguments, tool=row.tool)
            return row.turn_id, Asked(call, msgspec.json.decode(row.question, type=Question))
        return None
