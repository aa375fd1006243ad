"""The store as a SQLite file of one engine: durable group commits, and concurrent reads.

With WAL and `synchronous=FULL` an acknowledged commit survives a power cut. One writer runs all waiting units of work
in one transaction with one sync, and with one visit to the thread of aiosqlite's connection.
"""

import asyncio
import contextlib
import fcntl
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite

from dialog_engine.errors import StorageUnavailableError
from dialog_engine.storage import schemas
from dialog_engine.storage.database import Database, Row, Transaction, Unit
from plugins_contract.messages import new_id

T = TypeVar("T")
MAX_GROUP = 256
"""How many units one commit has at most, which bounds how long the first waits for the others."""
DIALECT = "sqlite"
OLDEST = 4
"""The oldest schema version that this release can migrate."""


class Connection(aiosqlite.Connection):
    """A connection of aiosqlite that can also run a whole function in its thread."""

    async def __aenter__(self) -> "Connection":
        try:
            await super().__aenter__()
        except BaseException:
            await asyncio.to_thread(self._thread.join)  # aiosqlite does not wait for it, and it needs the event loop
            raise
        return self

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the thread, after what was submitted before."""
        return await self._execute(work, self._conn)


class _SqliteTransaction(Transaction):
    skip_locked = ""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, *parameters: Any) -> list[Row]:
        return self._connection.execute(sql, _named(parameters)).fetchall()

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, map(_named, rows))


def _named(parameters: Sequence[Any]) -> Mapping[str, Any]:
    """`$1` is a name to SQLite; a sequence would be bound in the order in which the names appear."""
    return {str(number): value for number, value in enumerate(parameters, 1)}


@dataclass(slots=True)
class _Attempt:
    """The results of a group of units and, unless all were committed, the error."""

    results: list[Any] = field(default_factory=list[Any])
    begun: bool = False
    error: Exception | None = None


def _attempt(connection: sqlite3.Connection, units: Sequence[Unit[Any]]) -> _Attempt:
    attempt, transaction = _Attempt(), _SqliteTransaction(connection)
    try:
        connection.execute("BEGIN IMMEDIATE")
        attempt.begun = True
        for unit in units:
            attempt.results.append(unit(transaction))
        connection.execute("COMMIT")
    except Exception as error:  # noqa: BLE001 -- handed to the caller that waits for this unit
        attempt.error = error
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # SQLite may have done it already
                connection.execute("ROLLBACK")
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


class SqliteDatabase(Database):
    """An open file, created by `open_sqlite`."""

    def __init__(self, writer: Connection, reader: Connection) -> None:
        self._writer = writer
        self._reader = reader
        self._waiting: asyncio.Queue[_Waiting | None] = asyncio.Queue()
        self._closed = False
        self._refused: StorageUnavailableError | None = None
        self.commits = 0

    async def write(self, unit: Unit[T]) -> T:
        if self._closed:
            raise StorageUnavailableError("the engine is shutting down")
        waiting = _Waiting(unit, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(waiting)
        return await waiting.done

    async def read(self, sql: str, *parameters: Any) -> list[Row]:
        try:
            return await self._reader.run(lambda connection: _SqliteTransaction(connection).execute(sql, *parameters))
        except (sqlite3.Error, ValueError) as error:  # ValueError: aiosqlite's "Connection closed"
            raise StorageUnavailableError(f"the database cannot be read: {error}") from error

    async def check(self) -> None:
        """Writes only after a write has failed."""
        await self.read("SELECT count(*) FROM meta")
        if self._refused is not None:
            await self.write(_probe)

    async def engine_id(self) -> str:
        def unit(tx: Transaction) -> str:
            tx.execute("INSERT INTO meta (key, value) VALUES ('engine_id', $1) ON CONFLICT DO NOTHING", new_id())
            [(value,)] = tx.execute("SELECT value FROM meta WHERE key = 'engine_id'")
            return value

        return await self.write(unit)

    async def run(self) -> None:
        """Commit waiting units until `close`."""
        try:
            while (first := await self._waiting.get()) is not None:
                group: Sequence[_Waiting] = self._next_group(first)
                while group:
                    group = await self._commit(group)
        finally:
            self._closed = True

    def close(self) -> None:
        """Accept no more units; `run` ends when those that were accepted are answered."""
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
        """Commit the group as one transaction. A unit that fails gets its error; returns the others, to run again."""
        group = [waiting for waiting in group if not waiting.done.done()]
        units = [waiting.unit for waiting in group]
        attempt = await self._writer.run(lambda connection: _attempt(connection, units))
        if attempt.error is not None:
            failure = self._failure(attempt.error)
            at = len(attempt.results)
            if attempt.begun and at < len(group):
                group[at].fail(failure)
                return [*group[:at], *group[at + 1 :]]
            # BEGIN or COMMIT failed: every unit gets the error.
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
    tx.execute(
        "INSERT INTO meta (key, value) VALUES ('written_at', $1)"
        " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        str(time.time()),
    )


@contextlib.asynccontextmanager
async def open_sqlite(path: Path) -> AsyncGenerator[SqliteDatabase]:
    """Open the file, creating it and its folder if missing; its writer runs while the context is open.

    Raises:
        StorageUnavailableError: it is not a database of this engine, cannot be written, or another engine uses it.
        ConfigurationError: a later release has created or migrated it.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_owned(path))
            writer, reader = _connection(path), _connection(path)
            await stack.enter_async_context(writer)
            await writer.run(_prepare)
            await stack.enter_async_context(reader)
            await reader.run(lambda connection: connection.execute("PRAGMA query_only=ON"))
        except (OSError, sqlite3.Error) as error:
            raise StorageUnavailableError(f"OUTBOX_PATH {path} cannot be used: {error}") from error
        database = SqliteDatabase(writer, reader)
        work = asyncio.create_task(database.run(), name="database writer")
        try:
            yield database
        finally:
            database.close()
            await asyncio.wait([work])


def _connection(path: Path) -> Connection:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.create_function("now_ms", 0, lambda: time.time_ns() // 1_000_000)
        return connection

    return Connection(connect, iter_chunk_size=64)


@contextlib.contextmanager
def _owned(path: Path) -> Generator[None]:
    """Lock the file for this process: a second engine would adopt the running turns of the first."""
    with path.with_name(f"{path.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(
                "another engine is using it: set another OUTBOX_PATH, or let both share a PostgreSQL by DATABASE_URL"
            ) from None
        yield


def _prepare(writer: sqlite3.Connection) -> None:
    writer.execute("PRAGMA busy_timeout=1000")
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("PRAGMA synchronous=FULL")
    writer.execute("PRAGMA secure_delete=ON")  # what is deleted is overwritten in the file
    _migrate(writer)
    writer.execute("PRAGMA foreign_keys=ON")


def _migrate(writer: sqlite3.Connection) -> None:
    """Create or migrate the tables to the version of this release, each version in one transaction."""
    [(version,)] = writer.execute("PRAGMA user_version").fetchall()
    if not writer.execute("SELECT 1 FROM sqlite_master WHERE name = 'messages'").fetchall():
        _run_script(writer, schemas.schema(DIALECT), schemas.newest(DIALECT))
        return
    if version < OLDEST:
        raise sqlite3.DatabaseError(f"its schema version is {version}, and this release migrates {OLDEST} and newer")
    made_by = writer.execute("SELECT value FROM meta WHERE key = 'release'").fetchall()
    schemas.check_known(DIALECT, version, made_by[0][0] if made_by else "")
    for number, script in schemas.migrations(DIALECT).items():
        if number > version:
            _run_script(writer, script, number)


def _run_script(writer: sqlite3.Connection, script: str, version: int) -> None:
    writer.execute("BEGIN IMMEDIATE")
    try:
        for statement in script.split(";\n"):
            writer.execute(statement)
        writer.execute(f"PRAGMA user_version = {version}")
        writer.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('release', ?)", (schemas.RELEASE,))
    except BaseException:
        writer.execute("ROLLBACK")
        raise
    writer.execute("COMMIT")
