"""A connection to PostgreSQL that notices a server which does not answer, its errors, and a transaction on it."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

from dialog_engine.storage.attempts import Attempt, Pulse
from dialog_engine.storage.database import Row, Transaction, Unit, named

T = TypeVar("T")
LOST_CONNECTIONS = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""How soon TCP notices that the server's machine is gone."""

SLOT_MS = 86_400_000
"""The pool closes a connection after an hour."""


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


class SilentError(psycopg.OperationalError):
    """The server is connected and does not answer."""


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
        except SilentError:
            self.close()
            raise


def _until_silent(gen: PQGen[T], seconds: float) -> PQGen[T]:
    """`gen`, until the server has neither taken nor sent anything for so many seconds: a large write takes longer.

    Raises:
        SilentError: it has not.
    """
    ends_at = time.monotonic() + seconds
    try:
        waits_for = next(gen)
        while True:
            ready = yield waits_for
            if ready:
                ends_at = time.monotonic() + seconds
            elif time.monotonic() >= ends_at:
                raise SilentError(f"the server has not answered for {seconds:g} seconds")
            waits_for = gen.send(ready)
    except StopIteration as end:
        return end.value


def rows_of(cursor: "psycopg.Cursor[Any]") -> list[Row]:
    """The rows of the statement that the cursor has run."""
    return named((column.name for column in cursor.description), cursor.fetchall()) if cursor.description else []


def connection_was_lost(error: Exception) -> bool:
    """Whether the connection was lost, as opposed to a statement that failed."""
    state = getattr(error, "sqlstate", None)
    return state is None or state.startswith(("08", "57P"))


def first_line(error: Exception) -> str:
    """The first line of an error of libpq or the server, neither of which writes passwords."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


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


class CommitLostError(Exception):
    """The connection with this slot was lost during the COMMIT of its transaction with this number.

    `result` is the unit's.
    """

    def __init__(self, slot: int, number: int, result: Any) -> None:
        self.slot = slot
        self.number = number
        self.result = result


def in_transaction(connection: PostgresConnection, unit: Unit[T], attempt: Attempt) -> T:
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
                raise CommitLostError(slot, number, result) from error
            raise
        return result


def _new_slot(cursor: psycopg.Cursor[TupleRow]) -> int:
    """A row in `commits` for a new connection. Those of connections that were closed long ago are deleted."""
    cursor.execute(b"DELETE FROM commits WHERE created_at < now_ms() - $1", [SLOT_MS])
    cursor.execute(b"INSERT INTO commits (created_at) VALUES (now_ms()) RETURNING slot")
    [(slot,)] = cursor.fetchall()
    return slot
