"""The port of the store: units of work, each run in a thread of the driver, and the fence of a turn.

`sqlite` and `postgres` implement the port.

A statement is one text for both databases, with `$1` parameters. Both have a function `now_ms()`: Unix milliseconds on
the clock of the database. Booleans are stored as 0 and 1.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from dialog_engine.errors import TurnFencedError
from dialog_engine.model import Turn

T = TypeVar("T")
Row = tuple[Any, ...]


class Transaction(Protocol):
    """A transaction as a unit of work sees it."""

    skip_locked: str
    """SQL to append to a sub-select of rows to update, so that concurrent engines take different rows. Empty where
    there is one writer."""

    def execute(self, sql: str, *parameters: Any) -> list[Row]:
        """Run one statement; returns its rows."""
        ...

    def change(self, sql: str, *parameters: Any) -> int:
        """Run one INSERT, UPDATE or DELETE; returns how many rows it changed. RETURNING costs SQLite as much again."""
        ...

    def insert(self, key: str, sql: str, *parameters: Any) -> int:
        """Insert one row; returns what the database generated for its primary key, which is the column `key`."""
        ...

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each of `rows`."""
        ...


Unit = Callable[[Transaction], T]
"""A unit of work. It may be run again after a deadlock, so it must do nothing but use the transaction."""


class Database(Protocol):
    """An open database."""

    commits: int
    """How many transactions were committed by this process."""

    async def write(self, unit: Unit[T]) -> T:
        """Run `unit` in a transaction, which is durable when this returns. A cancellation withdraws a unit that has not
        begun; one that has begun is completed.

        Raises:
            StorageUnavailableError: the database cannot be written now. Nothing was written, unless the text says that
                this is not known.
            Exception: what the unit raises; nothing of it was written.
        """
        ...

    async def read(self, sql: str, *parameters: Any) -> list[Row]:
        """The rows of a query, from what is committed.

        Raises:
            StorageUnavailableError: the database cannot be read now.
        """
        ...

    async def check(self) -> None:
        """Whether the database can be read and written.

        Raises:
            StorageUnavailableError: it cannot.
        """
        ...

    async def engine_id(self) -> str:
        """The id of this engine: stable over restarts where the database belongs to one engine, otherwise new."""
        ...


def placeholders(first: int, count: int) -> str:
    """`$first, $first+1, …` for `IN (…)` with `count` values.

    PostgreSQL takes no empty list, and `IN (NULL)` is never true.
    """
    return ", ".join(f"${number}" for number in range(first, first + count)) or "NULL"


_FENCE = "UPDATE turns SET {} WHERE turn_id = $1 AND owner = $2 AND epoch = $3 AND status = 'running'"


def fence(tx: Transaction, turn: Turn, engine_id: str, also: str = "", *parameters: Any) -> None:
    """Allow only the owner of a running turn to write it, in its current epoch. Resets the turn's crash count.

    Each write of a turn begins with this update. A fenced engine matches no row and writes nothing. On PostgreSQL the
    lock of the row also serialises the writes of one turn. `also` are further columns of the row to set, with their
    `parameters` from `$4` on.

    Raises:
        TurnFencedError: another engine owns the turn, or it has ended.
    """
    _fence(tx, turn, engine_id, f"crashes = 0{also}", *parameters)


def fence_look(tx: Transaction, turn: Turn, engine_id: str) -> None:
    """Like `fence`, for a unit that reads the turn in the order of its writes: the crash count stays."""
    _fence(tx, turn, engine_id, "crashes = crashes")


def _fence(tx: Transaction, turn: Turn, engine_id: str, columns: str, *parameters: Any) -> None:
    _check(tx.change(_FENCE.format(columns), turn.turn_id, engine_id, turn.epoch, *parameters), turn)


def _check(changed: int, turn: Turn) -> None:
    if not changed:
        raise TurnFencedError(turn.turn_id)
