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
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg_pool import ConnectionPool, PoolTimeout

from callstream_runtime.client_waits import client_waits
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.storage.attempts import Attempt, Pulse
from dialog_engine.storage.database import Committed, Database, Row, Unit, ignore
from dialog_engine.storage.postgres_connection import (
    LOST_CONNECTIONS,
    CommitLostError,
    PostgresConnection,
    PostgresTimes,
    SilentError,
    connection_was_lost,
    first_line,
    in_transaction,
    rows_of,
)
from dialog_engine.storage.postgres_server import place_of, prepared
from plugins_contract.messages import new_id

log = logging.getLogger(__name__)

T = TypeVar("T")
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
            result = self._served(lambda connection: in_transaction(connection, unit, attempt))
        except CommitLostError as lost:
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
                if last or isinstance(error, PoolTimeout | errors.QueryCanceled | SilentError):
                    raise _unavailable(error) from error
                if connection_was_lost(error):
                    self._pool.check()  # after a restart of the server the others are dead too
        raise AssertionError("unreachable")

    def _resolved(self, lost: CommitLostError) -> Any:
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


def _unavailable(error: Exception) -> StorageUnavailableError:
    return StorageUnavailableError(f"the database cannot be used now: {first_line(error)}")


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
            **LOST_CONNECTIONS,
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
        await prepared(url, where, times)
        await asyncio.to_thread(pool.open)
        yield PostgresDatabase(pool, threads, pulse, times)
    finally:
        await asyncio.to_thread(threads.shutdown)  # waits for units that were submitted
        await asyncio.to_thread(pool.close)
