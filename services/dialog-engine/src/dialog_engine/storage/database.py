"""The SQLite file: durable writes in group commits, reads beside them.

WAL with `synchronous=FULL`: a commit that was answered survives a power cut. One writer takes every unit of work that
is waiting, runs them in one transaction and pays for one sync; under load that makes a commit cheap per call.
"""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite

from dialog_engine.errors import StorageUnavailableError

log = logging.getLogger(__name__)

T = TypeVar("T")
Row = tuple[Any, ...]
MAX_GROUP = 256
"""Units in one commit at most: bounds how long the first of them waits for the others."""


def now_ms() -> int:
    """Unix milliseconds on this machine's clock, for records only: never for deadlines."""
    return time.time_ns() // 1_000_000


class Transaction:
    """What a unit of work may do."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    async def execute(self, sql: str, *parameters: Any) -> list[Row]:
        """Run one statement; returns its rows (use RETURNING to see what a write did)."""
        return [tuple(row) for row in await self._connection.execute_fetchall(sql, parameters)]

    async def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each of `rows`."""
        await self._connection.executemany(sql, rows)


Unit = Callable[[Transaction], Awaitable[T]]
"""A unit of work. It may run twice when another unit of its group fails, so it only touches the database."""


@dataclass(slots=True)
class _Waiting:
    unit: Unit[Any]
    done: asyncio.Future[Any]


class Database:
    """An open file. Made by `open_database`."""

    def __init__(self, writer: aiosqlite.Connection, reader: aiosqlite.Connection) -> None:
        self._writer = writer
        self._reader = Transaction(reader)
        self._waiting: asyncio.Queue[_Waiting] = asyncio.Queue()

    async def write(self, unit: Unit[T]) -> T:
        """Run `unit` in a transaction; when this returns, it is on the disk.

        Raises:
            sqlite3.IntegrityError: as the unit's statements do; nothing of it was written.
            StorageUnavailableError: the file cannot be written now; nothing of it was written.
        """
        waiting = _Waiting(unit, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(waiting)
        return await waiting.done

    async def read(self, sql: str, *parameters: Any) -> list[Row]:
        """The rows of a query, from what is committed."""
        try:
            return await self._reader.execute(sql, *parameters)
        except sqlite3.OperationalError as error:
            raise StorageUnavailableError(f"the database cannot be read: {error}") from error

    async def run(self) -> None:
        """Commit what is waiting, for ever."""
        while True:
            group = [await self._waiting.get()]
            while len(group) < MAX_GROUP and not self._waiting.empty():
                group.append(self._waiting.get_nowait())
            try:
                if not await self._commit(group) and len(group) > 1:
                    for waiting in group:
                        await self._commit([waiting])
            except BaseException as error:
                for waiting in group:
                    if not waiting.done.done():
                        waiting.done.set_exception(StorageUnavailableError("the engine is shutting down"))
                if not isinstance(error, Exception):
                    raise
                log.exception("commit failed in an unexpected way")

    async def _commit(self, group: Sequence[_Waiting]) -> bool:
        """Commit the group as one. When a unit fails, the others get no answer unless it was alone."""
        transaction = Transaction(self._writer)
        results: list[Any] = []
        try:
            await transaction.execute("BEGIN IMMEDIATE")
            for waiting in group:
                results.append(await waiting.unit(transaction))  # noqa: PERF401 -- one after the other is the point
            await transaction.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 -- handed to whoever waits for this unit
            await self._roll_back()
            if len(group) == 1 and not group[0].done.done():
                group[0].done.set_exception(_translated(error))
            return False
        for waiting, result in zip(group, results, strict=True):
            if not waiting.done.done():
                waiting.done.set_result(result)
        return True

    async def _roll_back(self) -> None:
        if self._writer.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                await self._writer.execute("ROLLBACK")


def _translated(error: Exception) -> Exception:
    match error:
        case sqlite3.IntegrityError():
            return error
        case sqlite3.Error():
            unavailable = StorageUnavailableError(f"the database cannot be written: {error}")
            unavailable.__cause__ = error
            return unavailable
        case _:
            return error


@contextlib.asynccontextmanager
async def open_database(path: Path) -> AsyncGenerator[Database]:
    """Open the file, making it and its folder when they are missing; its writer runs while the context is open.

    Raises:
        StorageUnavailableError: it is not a database of ours, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        async with contextlib.AsyncExitStack() as stack:
            writer = await stack.enter_async_context(aiosqlite.connect(path, isolation_level=None))
            await _prepare(writer)
            reader = await stack.enter_async_context(aiosqlite.connect(path, isolation_level=None))
            await reader.execute("PRAGMA query_only=ON")
            database = Database(writer, reader)
            work = asyncio.create_task(database.run(), name="database writer")
            try:
                yield database
            finally:
                work.cancel()
                await asyncio.wait([work])
    except (OSError, sqlite3.DatabaseError) as error:
        raise StorageUnavailableError(f"OUTBOX_PATH {path} cannot be used: {error}") from error


async def _prepare(writer: aiosqlite.Connection) -> None:
    await writer.execute("PRAGMA journal_mode=WAL")
    await writer.execute("PRAGMA synchronous=FULL")
    await writer.execute("PRAGMA foreign_keys=ON")
    await writer.execute("PRAGMA busy_timeout=5000")
    await writer.executescript((files(__package__ or __name__) / "schema.sql").read_text())
