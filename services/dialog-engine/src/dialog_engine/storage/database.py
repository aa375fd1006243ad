"""The port of the databases: units of work, each run as a whole in a thread of the driver.

`sqlite` and `postgres` implement the port. Here values are what the tables hold: `store` encrypts and decrypts.

A statement is one text for both databases, with `$1` parameters. Both have a function `now_ms()`: Unix milliseconds on
the clock of the database. Booleans are stored as 0 and 1.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

T = TypeVar("T")
MAX_STATEMENTS = 512
"""How many statements, and how many kinds of rows, are remembered in the form in which they are used."""


class Row(tuple[Any, ...]):
    """A row of a result, with its columns as attributes. `columns` are their names."""

    __slots__ = ()
    columns: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:

        def __getattr__(self, column: str) -> Any: ...

    def by_name(self) -> dict[str, Any]:
        """The values of the columns."""
        return {column: getattr(self, column) for column in self.columns}


@lru_cache(MAX_STATEMENTS)
def row_type(columns: tuple[str, ...]) -> type[Row]:
    """The type of rows with these columns."""
    read = {column: property(itemgetter(place)) for place, column in enumerate(columns)}
    return type("Row", (Row,), {"__slots__": (), "columns": columns, **read})


def named(columns: Iterable[str], rows: Sequence[tuple[Any, ...]]) -> list[Row]:
    """Rows of a driver, with the names of their columns."""
    kind = row_type(tuple(columns))
    return [kind(row) for row in rows]


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

Committed = Callable[[T], object]
"""Called with the result of a unit that was committed. Must neither block nor raise."""


def ignore(_: object) -> None:
    """Do nothing with a result."""


class Database(Protocol):
    """An open database."""

    commits: int
    """How many transactions were committed by this process."""

    async def write(self, unit: Unit[T], committed: Committed[T] = ignore) -> T:
        """Run `unit` in a transaction, which is durable when this returns. A cancellation withdraws a unit that has not
        begun; one that has begun is completed.

        After COMMIT, and before this returns, `committed` is called in the event loop with the result of the unit: also
        when the caller was cancelled meanwhile, or was not answered in time.

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
