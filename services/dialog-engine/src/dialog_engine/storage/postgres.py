"""The store as a PostgreSQL database that any number of engines share.

A unit of work runs in a thread, on a connection of the pool, as one transaction. Units of one turn wait for each other
at the row of the turn, which each of them updates first (see `database.fence`).

When the connection is lost during COMMIT, it is unknown whether the transaction was committed. The server is asked by
the transaction's id as soon as it answers again: otherwise a message could run that was reported as refused.
"""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool, PoolTimeout

from callstream_runtime.client_waits import client_waits
from callstream_runtime.outage_log import OutageLog
from dialog_engine.errors import ConfigurationError, StorageUnavailableError
from dialog_engine.storage import schemas
from dialog_engine.storage.attempts import Attempt, Pulse
from dialog_engine.storage.database import Committed, Database, Row, Transaction, Unit, ignore, named
from plugins_contract.messages import new_id

log = logging.getLogger(__name__)

T = TypeVar("T")
DIALECT = "postgres"
OLDEST_SERVER = 150_000
SILENT_SECONDS = 0.7
"""How long the server may answer nothing to this engine until the units that clients wait for are given up: clients get
503 within a second. A slow server that answers other statements is not silent, so it is asked something before."""
ASKED_SECONDS = 0.3
"""After how much silence the server is asked, so that one slow statement is not taken for silence."""
REFUSED_SECONDS = 0.5
"""How long units fail at once after one has waited for a connection in vain."""
IDLE_SECONDS = 3
"""How long a transaction may be idle. An engine that stops in the middle of one keeps its turns from being adopted.
Shorter than a statement may take, so that statements that wait for its locks do not time out before."""
RESOLVE_PAUSE_SECONDS = 0.2
_LOST_CONNECTIONS = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""How soon TCP notices that the server's machine is gone."""
_DEFAULT_PLACE = {"host": "localhost", "port": "5432", "dbname": ""}
_LOGIN_REFUSED = (
    "password",
    "authentication",
    "does not exist",
    "no pg_hba.conf entry",
    "permission denied",
    "not permitted",
)
SLOT_MS = 86_400_000
"""The pool closes a connection after an hour."""
_MIGRATION_LOCK = 0x63616C6C  # an arbitrary key: "call" in ASCII


@dataclass(frozen=True, slots=True)
class PostgresTimes:
    """How long an engine waits for its server, in seconds."""

    connect: int = 3
    """How long one attempt to connect may take."""
    start_pauses: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """The pauses between the attempts of a start to use the server, which may be restarting. Attempts are counted, not
    seconds, because on a busy machine one of them may fail only for want of processor time."""
    pool: float = 3.0
    """How long a unit waits for a connection before it fails with StorageUnavailableError."""
    statement: int = 5
    """How long one statement may take, its waits for locks included."""
    answer: float = 8.0
    """How long a server may neither take nor send anything. Longer than a statement may take, so that a working server
    ends that itself."""
    resolve: float = 10.0
    """How long the server is asked about a lost COMMIT."""


BULK_TIMES = PostgresTimes(statement=600, answer=603)
"""For an operator's command, one statement of which may write a whole table."""


class _SilentError(psycopg.OperationalError):
    """The server is connected and does not answer."""


class _NotYetError(StorageUnavailableError):
    """A start could not use the server, for a reason that may pass."""


class PostgresConnection(psycopg.Connection[TupleRow]):
    """A connection with a timeout for a server that hangs, which TCP does not detect."""

    slot: int | None = None
    """The row of this connection in `commits`, once it has written."""
    pulse = Pulse()
    """Of the whole engine, once the pool has made the connection."""
    answer_seconds = PostgresTimes().answer

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        try:
            result = super().wait(_until_silent(gen, self.answer_seconds), interval, timeout)
            self.pulse.answered()
            return result
        except _SilentError:
            self.close()
            raise


def _until_silent(gen: PQGen[T], seconds: float) -> PQGen[T]:
    """`gen`, until the server has neither taken nor sent anything for so many seconds: a large write takes longer.

    Raises:
        _SilentError: it has not.
    """
    ends_at = time.monotonic() + seconds
    try:
        waits_for = next(gen)
        while True:
            ready = yield waits_for
            if ready:
                ends_at = time.monotonic() + seconds
            elif time.monotonic() >= ends_at:
                raise _SilentError(f"the server has not answered for {seconds:g} seconds")
            waits_for = gen.send(ready)
    except StopIteration as end:
        return end.value


class _PostgresTransaction(Transaction):
    skip_locked = "FOR UPDATE SKIP LOCKED"

    def __init__(self, cursor: psycopg.Cursor[TupleRow]) -> None:
        self._cursor = cursor

    def execute(self, sql: str, *parameters: Any) -> list[Row]:
        self._cursor.execute(sql.encode(), parameters)
        return rows_of(self._cursor)

    def change(self, sql: str, *parameters: Any) -> int:
        return self._cursor.execute(sql.encode(), parameters).rowcount

    def insert(self, key: str, sql: str, *parameters: Any) -> int:
        [row] = self.execute(f"{sql} RETURNING {key}", *parameters)
        return getattr(row, key)

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """In one round trip, because the row of the turn is locked meanwhile."""
        if len(rows) == 1:
            self._cursor.execute(sql.encode(), rows[0])  # half the processor time of a pipeline of one
        elif rows:
            self._cursor.executemany(sql.encode(), rows)


class _CommitLostError(Exception):
    """The connection with this slot was lost during the COMMIT of its transaction with this number.

    `result` is the unit's.
    """

    def __init__(self, slot: int, number: int, result: Any) -> None:
        self.slot = slot
        self.number = number
        self.result = result


class PostgresDatabase(Database):
    """A shared database, created by `open_postgres`."""

    def __init__(
        self, pool: ConnectionPool[PostgresConnection], threads: ThreadPoolExecutor, pulse: Pulse, times: PostgresTimes
    ) -> None:
        self._pool = pool
        self._times = times
        self._threads = threads
        self._pulse = pulse
        self._asking = threading.Lock()
        self._given_up_at = -math.inf
        self._refused_until = 0.0
        self._served_at = 0.0
        self.commits = 0

    async def write(self, unit: Unit[T], committed: Committed[T] = ignore) -> T:
        return await self._in_thread(lambda attempt: self._write(unit, attempt), committed)

    async def read(self, sql: str, *parameters: Any) -> list[Row]:
        return await self._in_thread(lambda _: self._read(sql, parameters))

    async def check(self) -> None:
        [row] = await self.read("SELECT current_setting('transaction_read_only') = 'on' AS read_only")
        if row.read_only:
            raise StorageUnavailableError("the database is read-only now: a standby, or a disk that is full")

    async def engine_id(self) -> str:
        return new_id()

    async def _in_thread(self, work: Callable[[Attempt], T], committed: Committed[T] = ignore) -> T:
        """Run `work` in a thread. A cancellation withdraws work that has not begun, and waits for work that has, so
        that the next unit comes after it. Work that a client waits for is given up when the server is silent."""
        if client_waits() and self._is_silent():
            raise StorageUnavailableError("the database cannot be reached now")
        attempt = Attempt()
        try:
            submitted = self._threads.submit(work, attempt)
        except RuntimeError:  # the threads are shut down
            raise StorageUnavailableError("the engine is shutting down") from None
        done = asyncio.wrap_future(submitted)
        done.add_done_callback(lambda done: _ended(done, committed))  # before those of who waits
        try:
            if client_waits() and not await self._ends_before_silence(done):
                written = not submitted.cancel() and not attempt.give_up()
                raise StorageUnavailableError(
                    f"the database has not answered for {SILENT_SECONDS:g} seconds: "
                    + ("whether it was written is not known" if written else "nothing was written")
                )
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not submitted.cancel():
                await asyncio.wait([done])
            raise

    def _is_silent(self) -> bool:
        """Whether a unit was given up in the last REFUSED_SECONDS, and the server has answered nothing since."""
        gave_up_at = self._given_up_at
        return self._pulse.answered_at < gave_up_at and time.monotonic() - gave_up_at < REFUSED_SECONDS

    async def _ends_before_silence(self, done: asyncio.Future[Any]) -> bool:
        """Wait for `done`; False when the server has answered nothing to this engine for SILENT_SECONDS meanwhile."""
        began = time.monotonic()
        while not done.done():
            silent = time.monotonic() - max(began, self._pulse.answered_at)
            if silent >= SILENT_SECONDS:
                self._given_up_at = time.monotonic()
                return False
            if silent >= ASKED_SECONDS and self._asking.acquire(blocking=False):
                threading.Thread(target=self._ask, name="postgres pulse", daemon=True).start()
            limit = ASKED_SECONDS if silent < ASKED_SECONDS else SILENT_SECONDS
            await asyncio.wait([done], timeout=limit - silent)
        return True

    def _ask(self) -> None:
        """Let the server answer something, if it can."""
        try:
            with contextlib.suppress(psycopg.Error), self._pool.connection(timeout=ASKED_SECONDS) as connection:
                connection.execute(b"SELECT")
        finally:
            self._asking.release()

    def _read(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        return self._served(lambda connection: rows_of(connection.execute(sql.encode(), parameters)))

    def _write(self, unit: Unit[T], attempt: Attempt) -> T:
        try:
            result = self._served(lambda connection: _transaction(connection, unit, attempt))
        except _CommitLostError as lost:
            result = self._resolved(lost)
        self.commits += 1
        return result

    def _served(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run `work` on a connection; once more when the connection was dead or for a deadlock, since nothing was
        committed then."""
        if time.monotonic() < self._refused_until:
            raise StorageUnavailableError("the database cannot be reached now")
        began = time.monotonic()
        for last in (False, True):
            try:
                with self._pool.connection() as connection:
                    result = _translated(connection, work)
                self._served_at = time.monotonic()
                self._refused_until = 0.0  # the database is back
                return result
            except (PoolTimeout, psycopg.OperationalError, errors.IdleInTransactionSessionTimeout) as error:
                if isinstance(error, PoolTimeout) and self._served_at < began:
                    # Units behind this one fail at once instead of waiting as long. Not when another unit got a
                    # connection meanwhile: the database is back then.
                    self._refused_until = time.monotonic() + REFUSED_SECONDS
                if last or isinstance(error, PoolTimeout | errors.QueryCanceled | _SilentError):
                    raise _unavailable(error) from error
                if connection_was_lost(error):
                    self._pool.check()  # after a restart of the server the others are dead too
        raise AssertionError("unreachable")

    def _resolved(self, lost: _CommitLostError) -> Any:
        """The unit's result, when its transaction was committed.

        Raises:
            StorageUnavailableError: it was not, or this is unknown.
        """
        ends_at = time.monotonic() + self._times.resolve
        while time.monotonic() < ends_at:
            with contextlib.suppress(StorageUnavailableError):
                # The lock waits for a transaction that has not ended yet.
                rows = self._read("SELECT number FROM commits WHERE slot = $1 FOR UPDATE", [lost.slot])
                if rows and rows[0].number >= lost.number:
                    return lost.result
                break
            time.sleep(RESOLVE_PAUSE_SECONDS)
        else:
            raise StorageUnavailableError(
                "the connection to the database was lost: whether it was written is not known"
            )
        raise StorageUnavailableError("the connection to the database was lost: nothing was written")


def _translated(connection: PostgresConnection, work: Callable[[PostgresConnection], T]) -> T:
    try:
        return work(connection)
    except errors.ReadOnlySqlTransaction as error:
        connection.close()  # the server became a standby: the next connection goes to the new primary
        raise _unavailable(error) from error
    except (psycopg.OperationalError, errors.IdleInTransactionSessionTimeout):
        raise
    except (
        psycopg.IntegrityError,
        psycopg.DataError,
        errors.SyntaxError,
    ):  # a defect of the caller: the database works
        raise
    except psycopg.Error as error:
        raise _unavailable(error) from error


def _ended(done: asyncio.Future[T], committed: Committed[T]) -> None:
    # The exception is looked at here, because nobody may wait for this work any more.
    if not done.cancelled() and done.exception() is None:
        committed(done.result())


def rows_of(cursor: "psycopg.Cursor[Any]") -> list[Row]:
    """The rows of the statement that the cursor has run."""
    return named((column.name for column in cursor.description), cursor.fetchall()) if cursor.description else []


def _transaction(connection: PostgresConnection, unit: Unit[T], attempt: Attempt) -> T:
    with connection.cursor() as cursor:
        slot = connection.slot = connection.slot or _new_slot(cursor)
        # Both in one round trip. The number says whether the transaction was committed if the answer to COMMIT is lost.
        # Its id would not: a server that is killed gives the id of a lost transaction to another one.
        cursor.execute(f"BEGIN; UPDATE commits SET number = number + 1 WHERE slot = {slot} RETURNING number".encode())
        cursor.nextset()
        [(number,)] = cursor.fetchall()
        try:
            result = unit(_PostgresTransaction(cursor))
            attempt.commits()
        except BaseException:
            if not connection.broken:
                with contextlib.suppress(psycopg.Error):
                    cursor.execute(b"ROLLBACK", prepare=False)
            raise
        try:
            cursor.execute(b"COMMIT", prepare=False)
        except psycopg.OperationalError as error:
            if connection_was_lost(error):
                raise _CommitLostError(slot, number, result) from error
            raise
        return result


def _new_slot(cursor: psycopg.Cursor[TupleRow]) -> int:
    """A row in `commits` for a new connection. Those of connections that were closed long ago are deleted."""
    cursor.execute(b"DELETE FROM commits WHERE created_at < now_ms() - $1", [SLOT_MS])
    cursor.execute(b"INSERT INTO commits (created_at) VALUES (now_ms()) RETURNING slot")
    [(slot,)] = cursor.fetchall()
    return slot


def connection_was_lost(error: Exception) -> bool:
    """Whether the connection was lost, as opposed to a statement that failed."""
    state = getattr(error, "sqlstate", None)
    return state is None or state.startswith(("08", "57P"))


def _unavailable(error: Exception) -> StorageUnavailableError:
    return StorageUnavailableError(f"the database cannot be used now: {_plain(error)}")


def _plain(error: Exception) -> str:
    """The first line of an error of libpq or the server, neither of which writes passwords."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


@contextlib.asynccontextmanager
async def open_postgres(
    url: str, pool_size: int, *, times: PostgresTimes = PostgresTimes()
) -> AsyncGenerator[PostgresDatabase]:
    """Connect, check the server, and create or migrate the tables.

    The time of a statement does not bound a migration, which takes as long as it takes.

    Raises:
        ConfigurationError: DATABASE_URL or the database must be changed; the text says what.
        StorageUnavailableError: it could not be used, in several attempts.
    """
    where, pulse = place_of(url), Pulse()

    def configure(connection: PostgresConnection) -> None:
        connection.pulse = pulse
        connection.answer_seconds = times.answer

    pool = ConnectionPool[PostgresConnection](
        url,
        connection_class=PostgresConnection,
        kwargs={
            "autocommit": True,
            "cursor_factory": psycopg.RawCursor,
            "connect_timeout": times.connect,
            "options": f"-c statement_timeout={times.statement}s"
            f" -c idle_in_transaction_session_timeout={IDLE_SECONDS}s",
            "application_name": "dialog-engine",
            **_LOST_CONNECTIONS,
        },
        min_size=1,
        max_size=pool_size,
        timeout=times.pool,
        reconnect_timeout=times.pool,
        configure=configure,
        open=False,
        name="dialog-engine",
    )
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # outages are logged where they matter
    threads = ThreadPoolExecutor(pool_size, thread_name_prefix="postgres")
    try:
        await _prepared(url, where, times)
        await asyncio.to_thread(pool.open)
        yield PostgresDatabase(pool, threads, pulse, times)
    finally:
        await asyncio.to_thread(threads.shutdown)  # waits for units that were submitted
        await asyncio.to_thread(pool.close)


def place_of(url: str) -> str:
    """The server and the database of a URL, without the password.

    The error of libpq for a URL that it cannot parse is left out, because it quotes the password. A password that is
    not percent-encoded may be parsed as a part of the host, the port or the database.
    """
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        parts = None
    if parts is not None:
        host, port, name = (str(parts.get(key, default)) for key, default in _DEFAULT_PLACE.items())
        if "@" not in host + name and port.replace(",", "").isdigit():
            return f"{host}:{port}/{name}"
    raise ConfigurationError(
        "DATABASE_URL: is not a URL such as postgresql://user:password@host:5432/database; other characters than"
        " letters and digits in the password are written percent-encoded"
    )


async def _prepared(url: str, where: str, times: PostgresTimes) -> None:
    """Run `_prepare`, again if the server cannot be used yet."""
    outage = OutageLog(log, "the database")
    for pause in times.start_pauses:
        try:
            await asyncio.to_thread(_prepare, url, where, times.connect)
        except _NotYetError as error:
            outage.failed(error)
            await asyncio.sleep(pause)
        else:
            outage.worked()
            return
    await asyncio.to_thread(_prepare, url, where, times.connect)


def _prepare(url: str, where: str, connect_seconds: int) -> None:
    try:
        with psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=connect_seconds,
            **cast("Any", _LOST_CONNECTIONS),
        ) as connection:
            _check_server(connection)
            _migrate(connection)
    except (errors.InsufficientPrivilege, errors.InvalidSchemaName) as error:
        user = conninfo_to_dict(url).get("user", "its user")
        raise ConfigurationError(
            f"DATABASE_URL: {user} lacks a right on {where}: {_plain(error)}: GRANT CREATE, USAGE ON SCHEMA public TO"
            f" {user}, or make it the owner of the database"
        ) from None
    except (errors.InvalidPassword, errors.InvalidAuthorizationSpecification, errors.InvalidCatalogName) as error:
        raise ConfigurationError(f"DATABASE_URL: {where} refuses the login: {_plain(error)}") from None
    except psycopg.Error as error:
        text = _plain(error)
        # libpq reports a refused login without an SQLSTATE.
        if error.sqlstate is None and any(words in text for words in _LOGIN_REFUSED):
            raise ConfigurationError(f"DATABASE_URL: {where} refuses the login: {text}") from None
        unavailable = _NotYetError if isinstance(error, psycopg.OperationalError) else StorageUnavailableError
        raise unavailable(f"DATABASE_URL: {where} cannot be used: {text}") from None


def check_version(version: int) -> None:
    """Raises ConfigurationError when the server, with this number of its version, is too old."""
    if version < OLDEST_SERVER:
        raise ConfigurationError(f"DATABASE_URL: the server is PostgreSQL {version // 10_000}: 15 or newer is needed")


def _check_server(connection: "psycopg.Connection[Any]") -> None:
    check_version(connection.info.server_version)
    for setting, loss in (("synchronous_commit", "acknowledged messages"), ("fsync", "the whole database")):
        [value] = connection.execute(f"SHOW {setting}".encode()).fetchall()
        if value[0] == "off":
            raise ConfigurationError(
                f"DATABASE_URL: {setting} is off on the server, so a crash could lose {loss}: set it to on"
            )
    [read_only] = connection.execute(b"SHOW transaction_read_only").fetchall()
    if read_only[0] == "on":
        raise ConfigurationError(
            "DATABASE_URL: the server is a read-only standby: name the primary, or all servers with"
            " target_session_attrs=read-write"
        )


def _migrate(connection: "psycopg.Connection[Any]") -> None:
    """Create or migrate the tables to the version of this release, in one transaction. Engines that start at the same
    time wait for each other here."""
    with connection.transaction():
        connection.execute(b"SELECT pg_advisory_xact_lock(%s)", [_MIGRATION_LOCK])
        if not connection.execute(b"SELECT to_regclass('meta')").fetchall()[0][0]:
            connection.execute(schemas.schema(DIALECT).encode())
        else:
            found: dict[str, str] = dict(connection.execute(b"SELECT key, value FROM meta").fetchall())
            needed = int(found.get("schema_version", "0"))
            schemas.check_not_too_old(DIALECT, needed)
            schemas.check_known(DIALECT, needed, found.get("release", ""))
            version = int(found.get("tables_version", needed))
            if version >= schemas.newest(DIALECT):
                return
            for number, script in schemas.migrations(DIALECT).items():
                if number > version:
                    connection.execute(script.encode())
        newest = schemas.newest(DIALECT)
        versions = {"schema_version": schemas.needed(DIALECT, newest), "tables_version": newest}
        for key, value in (versions | {"release": schemas.RELEASE}).items():
            connection.execute(
                b"INSERT INTO meta (key, value) VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                [key, str(value)],
            )
