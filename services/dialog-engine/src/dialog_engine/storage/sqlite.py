"""The store as a SQLite file of one engine: durable group commits, and concurrent reads.

With WAL and `synchronous=FULL` an acknowledged commit survives a power cut. The units of work that wait are committed
as one group: one transaction, one sync and one visit to the thread of aiosqlite's connection.
"""

import asyncio
import contextlib
import re
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

import aiosqlite

from dialog_engine.errors import StorageUnavailableError
from dialog_engine.storage.database import (
    MAX_STATEMENTS,
    Committed,
    Database,
    Row,
    Transaction,
    Unit,
    ignore,
    named,
)
from plugins_contract.messages import new_id

T = TypeVar("T")
MAX_GROUP = 256
"""How many units one commit has at most, which bounds how long the first waits for the others."""
CALLS_PER_MS = 16
MAX_PAUSE_MS = 4
"""A group begins a millisecond after the one before for every 16 tool calls in flight, and at most this much, so that
their units come together (docs/tuning.md)."""
_NUMBER = re.compile(r"\$(?=\d)")
_NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 + 0.5 AS INTEGER)"


class SqliteConnection(aiosqlite.Connection):
    """A connection of aiosqlite that can also run a whole function in its thread."""

    async def __aenter__(self) -> "SqliteConnection":
        try:
            await super().__aenter__()
        except BaseException:
            await asyncio.to_thread(self._thread.join)  # aiosqlite does not wait for it, and it needs the event loop
            raise
        return self

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the thread, after what was submitted before."""
        return await self._execute(work, self._conn)

    def submit(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Like `run`, without waiting for it. `work` must not raise."""
        self._tx.put_nowait((None, partial(work, self._conn)))


class _SqliteTransaction(Transaction):
    skip_locked = ""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._cursor = connection.cursor()

    def execute(self, sql: str, *parameters: Any) -> list[Row]:
        rows = self._cursor.execute(as_sqlite(sql), parameters).fetchall()
        return named([column[0] for column in self._cursor.description], rows) if rows else rows

    def change(self, sql: str, *parameters: Any) -> int:
        return self._cursor.execute(as_sqlite(sql), parameters).rowcount

    def insert(self, key: str, sql: str, *parameters: Any) -> int:
        self._cursor.execute(as_sqlite(sql), parameters)
        return self._cursor.lastrowid or 0  # a generated key is the row's id

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            self._cursor.executemany(as_sqlite(sql), rows)

    def close(self) -> None:
        """What a unit returns may hold the transaction, and ends in another thread. The cursor must not end there: it
        resets its last statement, which the next group may be running."""
        self._cursor.close()


@lru_cache(MAX_STATEMENTS)
def as_sqlite(sql: str) -> str:
    """A statement as SQLite runs it: with `?1` for `$1`, which would be a name and need a dictionary, and with an
    expression for `now_ms()`, because a function of Python would have to wait until the event loop releases the
    interpreter."""
    return _NUMBER.sub("?", sql).replace("now_ms()", _NOW_MS)


@dataclass(slots=True)
class _Write:
    """A unit of work, the future of its caller, which may be cancelled, and what became of the unit."""

    unit: Unit[Any]
    committed: Committed[Any]
    done: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None

    def answer(self) -> None:
        if self.done.done():
            return
        if self.error is None:
            self.done.set_result(self.result)
        else:
            self.done.set_exception(self.error)


def _commit(connection: sqlite3.Connection, writes: Sequence[_Write]) -> bool:
    """Run the units in one transaction. A unit that fails gets its error, and the others are run again without it. When
    the transaction cannot begin or be committed, all get the error. Returns whether anything was committed."""
    with contextlib.closing(_SqliteTransaction(connection)) as transaction:
        return _commit_in(transaction, connection, writes)


def _commit_in(transaction: _SqliteTransaction, connection: sqlite3.Connection, writes: Sequence[_Write]) -> bool:
    while writes:
        failed = writes
        try:
            connection.execute("BEGIN IMMEDIATE")
            for write in writes:
                failed = [write]
                write.result = write.unit(transaction)
            failed = writes
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 -- handed to the callers that wait for these units
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):  # SQLite may have done it already
                    connection.execute("ROLLBACK")
            for write in failed:
                write.error = _translated(error)
            writes = [write for write in writes if write.error is None]
        else:
            return True
    return False


def _read(sql: str, parameters: Sequence[Any], connection: sqlite3.Connection) -> list[Row]:
    with contextlib.closing(_SqliteTransaction(connection)) as transaction:
        return transaction.execute(sql, *parameters)


def _translated(error: Exception) -> Exception:
    if not isinstance(error, sqlite3.Error) or isinstance(error, sqlite3.IntegrityError):
        return error
    refused = StorageUnavailableError(f"the database cannot be written: {error}")
    refused.__cause__ = error
    return refused


class SqliteDatabase(Database):
    """An open file: see `sqlite_file.open_sqlite`."""

    def __init__(
        self, writer: SqliteConnection, reader: SqliteConnection, calls_in_flight: Callable[[], int], max_pause_ms: int
    ) -> None:
        self._max_pause_ms = max_pause_ms
        self._writer = writer
        self._reader = reader
        self._calls_in_flight = calls_in_flight
        self._waiting: deque[_Write] = deque()
        self._begun: list[_Write] = []
        self._visiting = False
        """Whether a group is being committed, or its begin is scheduled."""
        self._not_before = 0.0
        self._closed = False
        self._refused = False
        self._damage = ""
        """The first error that said that the file is damaged. The parts that are not may still be read and written."""
        self.commits = 0

    async def write(self, unit: Unit[T], committed: Committed[T] = ignore) -> T:
        if self._closed:
            raise StorageUnavailableError("the engine is shutting down")
        write = _Write(unit, committed, asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        if not self._visiting:
            self._begin_soon()
        return await write.done

    async def read(self, sql: str, *parameters: Any) -> list[Row]:
        try:
            return await self._reader.run(partial(_read, sql, parameters))
        except (sqlite3.Error, ValueError) as error:  # ValueError: aiosqlite's "Connection closed"
            self._note_damage(error)
            raise StorageUnavailableError(f"the database cannot be read: {error}") from error

    async def check(self) -> None:
        """Writes only after a write has failed."""
        if self._damage:
            raise StorageUnavailableError(f"the database file is damaged, restore a backup: {self._damage}")
        await self.read("SELECT count(*) FROM meta")
        if self._refused:
            await self.write(_probe)

    async def engine_id(self) -> str:
        def unit(tx: Transaction) -> str:
            tx.execute("INSERT INTO meta (key, value) VALUES ('engine_id', $1) ON CONFLICT DO NOTHING", new_id())
            [row] = tx.execute("SELECT value FROM meta WHERE key = 'engine_id'")
            return row.value

        return await self.write(unit)

    async def close(self) -> None:
        """Accept no more units, and wait until those that were accepted are answered."""
        self._closed = True
        if accepted := [write.done for write in (*self._begun, *self._waiting)]:
            await asyncio.wait(accepted)

    def _begin_soon(self) -> None:
        """Schedule the next group, after the pause that follows the last one."""
        loop = asyncio.get_running_loop()
        self._visiting = True
        if (pause := self._not_before - loop.time()) > 0:
            loop.call_later(pause, self._begin)
        else:
            loop.call_soon(self._begin)  # with the other units of this iteration of the loop

    def _begin(self) -> None:
        """Send the next group to the thread of the connection, which calls `_end` in the event loop."""
        self._begun = []
        while self._waiting and len(self._begun) < MAX_GROUP:
            write = self._waiting.popleft()
            if not write.done.done():
                self._begun.append(write)
        self._visiting = bool(self._begun)
        if self._visiting:
            self._writer.submit(partial(self._visit, asyncio.get_running_loop(), self._begun))

    def _visit(self, loop: asyncio.AbstractEventLoop, writes: Sequence[_Write], connection: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(self._end, writes, _commit(connection, writes))

    def _end(self, writes: Sequence[_Write], committed: bool) -> None:
        self.commits += committed
        if committed:
            self._refused = False
        elif any(isinstance(write.error, StorageUnavailableError) for write in writes):
            self._refused = True
        pause_ms = min(self._calls_in_flight() // CALLS_PER_MS, self._max_pause_ms)
        self._not_before = asyncio.get_running_loop().time() + pause_ms / 1000
        self._visiting = False
        if self._waiting:
            self._begin_soon()
        for write in writes:
            if write.error is not None:
                self._note_damage(write.error.__cause__)
            write.answer()
        for write in writes:  # before the callers run, which are only scheduled yet
            if write.error is None:
                write.committed(write.result)

    def _note_damage(self, error: BaseException | None) -> None:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF in (
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB,
        ):
            self._damage = self._damage or str(error)


def _probe(tx: Transaction) -> None:
    tx.execute(
        "INSERT INTO meta (key, value) VALUES ('written_at', $1)"
        " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        str(time.time()),
    )
