"""The port of the store: units of work, run whole in a thread of the driver. `sqlite` and `postgres` implement it.

A statement is one text for both databases, with `$1` parameters. Both have a function `now_ms()`: Unix milliseconds on
the clock of the database. Booleans are stored as 0 and 1.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from dialog_engine.errors import TurnFencedError
from dialog_engine.model import Turn

T = TypeVar("T")
Row = tuple[Any, ...]


class Transaction(Protocol):
    """What a unit of work may do."""

    skip_locked: str
    """What goes behind a sub-select of rows to be updated, so that engines that do the same at the same time take
    different ones. Empty where there is one writer."""

    def execute(self, sql: str, *parameters: Any) -> list[Row]:
        """Run one statement; returns its rows (use RETURNING to see what a write did)."""
        ...

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each of `rows`."""
        ...


Unit = Callable[[Transaction], T]
"""A unit of work. It may run again when the database asks for that, so it only touches the database."""


class Database(Protocol):
    """An open database."""

    commits: int
    """How many transactions were committed by this process."""

    async def write(self, unit: Unit[T]) -> T:
        """Run `unit` in a transaction; when this returns, it is durable. A caller that stops waiting before its unit
        has begun takes it back; a unit that has begun is never torn.

        Raises:
            StorageUnavailableError: the database cannot be written now. Nothing was written, unless the text says that
                this is not known.
            Exception: whatever the unit raises; nothing of it was written.
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
        """The id of this engine: the same over all its lives where the database belongs to one engine, else new."""
        ...


def placeholders(first: int, count: int) -> str:
    """`$first, $first+1, …` for a list of `count` values."""
    return ", ".join(f"${number}" for number in range(first, first + count))


_OWNED = "turn_id = $1 AND owner = $2 AND epoch = $3 AND status = 'running' RETURNING 1"


def fence(tx: Transaction, turn: Turn, engine_id: str) -> None:
    """Let only the owner of a running turn go on. The turn came further: its crashes are forgotten.

    Raises:
        TurnFencedError: another engine runs the turn, or nobody does.
    """
    _check(tx.execute(f"UPDATE turns SET crashes = 0 WHERE {_OWNED}", turn.turn_id, engine_id, turn.epoch), turn)


def fence_look(tx: Transaction, turn: Turn, engine_id: str) -> None:
    """The same for a unit that only looks at the turn, in the order of its writes: it brings the turn no further."""
    _check(tx.execute(f"UPDATE turns SET crashes = crashes WHERE {_OWNED}", turn.turn_id, engine_id, turn.epoch), turn)


def _check(rows: list[tuple[object, ...]], turn: Turn) -> None:
    if not rows:
        raise TurnFencedError(turn.turn_id)
