"""The SQLite file: durable writes in group commits, reads beside them.

WAL with `synchronous=FULL`: a commit that was answered survives a power cut. One writer takes every unit of work that
is waiting, runs them in one transaction and pays for one sync; under load that makes a commit cheap per call. Each
connection has a thread of its own, and a whole group of units is one visit there.
"""

import asyncio
import contextlib
import fcntl
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from dialog_engine.errors import StorageUnavailableError

T = TypeVar("T")
Row = tuple[Any, ...]
MAX_GROUP = 256
"""Units in one commit at most: bounds how long the first of them waits for the others."""


def now_ms() -> int:
    """Unix milliseconds on this machine's clock, for records only: never for deadlines."""
    return time.time_ns() // 1_000_000


class Transaction:
    """What a unit of work may do."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, *parameters: Any) -> list[Row]:
        """Run one statement; returns its rows (use RETURNING to see what a write did)."""
        return self._connection.execute(sql, parameters).fetchall()

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each of `rows`."""
        self._connection.executemany(sql, rows)


Unit = Callable[[Transaction], T]
"""A unit of work, run in the thread of the database. It may run again when another unit of its group fails, so it only
touches the database."""


class Connection:
    """A connection, and the thread where everything is done with it. Close it when nothing is under way."""

    def __init__(self, path: Path) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite")
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in the thread, after what was given to it before."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._connection)

    def close(self) -> None:
        """Close it."""
        self._thread.shutdown()
        self._connection.close()


@dataclass(slots=True)
class _Attempt:
    """What became of a group of units: the results of those that ran and, unless all are committed, what failed."""

    results: list[Any] = field(default_factory=list[Any])
    begun: bool = False
    error: Exception | None = None


def _attempt(connection: sqlite3.Connection, units: Sequence[Unit[Any]]) -> _Attempt:
    attempt, transaction = _Attempt(), Transaction(connection)
    try:
        transaction.execute("BEGIN IMMEDIATE")
        attempt.begun = True
        for unit in units:
            attempt.results.append(unit(transaction))
        transaction.execute("COMMIT")
    except Exception as error:  # noqa: BLE001 -- handed to whoever waits for this unit
        attempt.error = error
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # SQLite may have done it already
                transaction.execute("ROLLBACK")
    return attempt


@dataclass(slots=True)
class _Waiting:
    unit: Unit[Any]
    done: asyncio.Future[Any]

    def answer(self, result: Any) -> None:
        if not self.done.done():
            self.done.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Database:
    """An open file. Made by `open_database`."""

    def __init__(self, writer: Connection, reader: Connection) -> None:
        self._writer = writer
        self._reader = reader
        self._waiting: asyncio.Queue[_Waiting | None] = asyncio.Queue()
        self._closed = False
        self._refused: StorageUnavailableError | None = None
        self.commits = 0
        """How many groups were committed."""

    async def write(self, unit: Unit[T]) -> T:
        """Run `unit` in a transaction; when this returns, it is on the disk. Who stops waiting before its unit has
        begun takes it back.

        Raises:
            sqlite3.IntegrityError: as the unit's statements do; nothing of it was written.
            StorageUnavailableError: the file cannot be written now; nothing of it was written.
            Exception: whatever else the unit raises; nothing of it was written.
        """
        if self._closed:
            raise StorageUnavailableError("the engine is shutting down")
        waiting = _Waiting(unit, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(waiting)
        return await waiting.done

    async def read(self, sql: str, *parameters: Any) -> list[Row]:
        """The rows of a query, from what is committed.

        Raises:
            StorageUnavailableError: the file cannot be read now.
        """
        try:
            return await self._reader.run(lambda connection: Transaction(connection).execute(sql, *parameters))
        except sqlite3.Error as error:
            raise StorageUnavailableError(f"the database cannot be read: {error}") from error

    async def check(self) -> None:
        """Whether the file can be read and written. Costs a write only after one has failed.

        Raises:
            StorageUnavailableError: it cannot.
        """
        await self.read("SELECT count(*) FROM meta")
        if self._refused is not None:
            await self.write(_probe)

    async def run(self) -> None:
        """Commit what is waiting, until `close`."""
        try:
            while (first := await self._waiting.get()) is not None:
                group: Sequence[_Waiting] = self._next_group(first)
                while group:
                    group = await self._commit(group)
        finally:
            self._closed = True

    def close(self) -> None:
        """Take nothing more; `run` ends when what was taken is answered."""
        self._closed = True
        self._waiting.put_nowait(None)

    def _next_group(self, first: _Waiting) -> list[_Waiting]:
        group = [first]
        while len(group) < MAX_GROUP and not self._waiting.empty():
            waiting = self._waiting.get_nowait()
            if waiting is None:
                self._waiting.put_nowait(None)
                break
            group.append(waiting)
        return group

    async def _commit(self, group: Sequence[_Waiting]) -> Sequence[_Waiting]:
        """Commit the group as one. A unit that fails is answered so; returns the others, to be run again."""
        group = [waiting for waiting in group if not waiting.done.done()]
        units = [waiting.unit for waiting in group]
        attempt = await self._writer.run(lambda connection: _attempt(connection, units))
        if attempt.error is not None:
            failure = self._failure(attempt.error)
            at = len(attempt.results)
            if attempt.begun and at < len(group):
                group[at].fail(failure)
                return [*group[:at], *group[at + 1 :]]
            # The file itself refused, at the beginning or at the end: that is everybody's answer.
            for waiting in group:
                waiting.fail(failure)
            return ()
        self.commits += 1
        self._refused = None
        for waiting, result in zip(group, attempt.results, strict=True):
            waiting.answer(result)
        return ()

    def _failure(self, error: Exception) -> Exception:
        match error:
            case sqlite3.IntegrityError():
                return error
            case sqlite3.Error():
                self._refused = StorageUnavailableError(f"the database cannot be written: {error}")
                self._refused.__cause__ = error
                return self._refused
            case _:
                return error


def _probe(tx: Transaction) -> None:
    tx.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('written_at', ?)", str(now_ms()))


@contextlib.asynccontextmanager
async def open_database(path: Path) -> AsyncGenerator[Database]:
    """Open the file, making it and its folder when they are missing; its writer runs while the context is open.

    Raises:
        StorageUnavailableError: it is not a database of ours, cannot be written, or another engine has it.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_owned(path))
            writer = stack.enter_context(contextlib.closing(Connection(path)))
            await writer.run(_prepare)
            reader = stack.enter_context(contextlib.closing(Connection(path)))
            await reader.run(lambda connection: connection.execute("PRAGMA query_only=ON"))
        except (OSError, sqlite3.Error) as error:
            raise StorageUnavailableError(f"OUTBOX_PATH {path} cannot be used: {error}") from error
        database = Database(writer, reader)
        work = asyncio.create_task(database.run(), name="database writer")
        try:
            yield database
        finally:
            database.close()
            await asyncio.wait([work])


@contextlib.contextmanager
def _owned(path: Path) -> Generator[None]:
    """Hold the file for this process: a second engine on it would take the running turns of the first for its own."""
    with path.with_name(f"{path.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError("another engine is using it; give each engine a file of its own") from None
        yield


_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "ALTER TABLE turns ADD COLUMN owned INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE messages ADD COLUMN number INTEGER NOT NULL DEFAULT 0",
        "UPDATE messages SET number = message_id",
        "DROP INDEX IF EXISTS messages_by_session",
    ),
    ("ALTER TABLE tool_calls ADD COLUMN tool TEXT NOT NULL DEFAULT ''",),
    ("ALTER TABLE turns ADD COLUMN model TEXT",),
    (
        "ALTER TABLE turns ADD COLUMN chosen_model TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE turns ADD COLUMN tool_mode TEXT NOT NULL DEFAULT ''",
    ),
)
"""What makes a file of version n (`PRAGMA user_version`) one of version n + 1. A new file is made by schema.sql."""


def _migrate(writer: sqlite3.Connection) -> None:
    transaction = Transaction(writer)
    if not transaction.execute("SELECT 1 FROM sqlite_master WHERE name = 'messages'"):
        transaction.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
        return
    [(version,)] = transaction.execute("PRAGMA user_version")
    for number, statements in enumerate(_MIGRATIONS[version:], version + 1):
        transaction.execute("BEGIN IMMEDIATE")
        for statement in statements:
            transaction.execute(statement)
        transaction.execute(f"PRAGMA user_version = {number}")
        transaction.execute("COMMIT")


def _prepare(writer: sqlite3.Connection) -> None:
    writer.execute("PRAGMA busy_timeout=1000")
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("PRAGMA synchronous=FULL")
    writer.execute("PRAGMA foreign_keys=ON")
    _migrate(writer)
    writer.executescript((files(__package__ or __name__) / "schema.sql").read_text())
