"""Opens the SQLite file of one engine: locked for this process, and with the tables of this release."""

import contextlib
import fcntl
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

from dialog_engine.errors import StorageUnavailableError
from dialog_engine.storage import schemas
from dialog_engine.storage.sqlite import MAX_PAUSE_MS, SqliteConnection, SqliteDatabase, as_sqlite

DIALECT = "sqlite"


@contextlib.asynccontextmanager
async def open_sqlite(
    path: Path, calls_in_flight: Callable[[], int] = lambda: 0, max_pause_ms: int = MAX_PAUSE_MS
) -> AsyncGenerator[SqliteDatabase]:
    """Open the file, creating it and its folder if missing; its writer runs while the context is open.

    `calls_in_flight` returns how many tool calls the engine waits for: see `MAX_PAUSE_MS`.

    Raises:
        StorageUnavailableError: it is not a database of this engine, cannot be written, or another engine uses it.
        ConfigurationError: a later release has created or migrated it.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(owned(path))
            writer, reader = _connection(path), _connection(path)
            await stack.enter_async_context(writer)
            await writer.run(_prepare)
            await stack.enter_async_context(reader)
            await reader.run(lambda connection: connection.execute("PRAGMA query_only=ON"))
        except (OSError, sqlite3.Error) as error:
            raise StorageUnavailableError(f"OUTBOX_PATH {path} cannot be used: {error}") from error
        database = SqliteDatabase(writer, reader, calls_in_flight, max_pause_ms)
        try:
            yield database
        finally:
            await database.close()


def _connection(path: Path) -> SqliteConnection:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None)

    return SqliteConnection(connect, iter_chunk_size=64)


@contextlib.contextmanager
def owned(path: Path) -> Generator[None]:
    """Lock the file for this process: a second engine would adopt the running turns of the first.

    Raises:
        OSError: another process has it, or the lock cannot be made.
    """
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
    [(needed,)] = writer.execute("PRAGMA user_version").fetchall()
    if not writer.execute("SELECT 1 FROM sqlite_master WHERE name = 'messages'").fetchall():
        _run_script(writer, schemas.schema(DIALECT), schemas.newest(DIALECT))
        return
    schemas.check_not_too_old(DIALECT, needed)
    found: dict[str, str] = dict(writer.execute("SELECT key, value FROM meta"))
    schemas.check_known(DIALECT, needed, found.get("release", ""))
    version = int(found.get("tables_version") or needed)
    for number, script in schemas.migrations(DIALECT).items():
        if number > version:
            _run_script(writer, script, number)


def _run_script(writer: sqlite3.Connection, script: str, version: int) -> None:
    writer.execute("BEGIN IMMEDIATE")
    try:
        for statement in script.split(";\n"):
            writer.execute(as_sqlite(statement))
        writer.execute(f"PRAGMA user_version = {schemas.needed(DIALECT, version)}")
        for key, value in (("tables_version", str(version)), ("release", schemas.RELEASE)):
            writer.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))
    except BaseException:
        writer.execute("ROLLBACK")
        raise
    writer.execute("COMMIT")
