"""Reads a table in pages, in the order of a key, so that memory and statements stay bounded whatever its rows hold."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from dialog_engine.storage.database import Database, Row, placeholders

Key = tuple[Any, ...]
PAGE = 200
PAGE_BYTES = 4_000_000
"""Rows are read together until they have this many bytes, or are PAGE."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of `table` by the columns `key`. `large` are the columns with texts or data, whose lengths count.
    `only` is SQL of a condition on the rows."""

    table: str
    key: Sequence[str]
    large: Sequence[str]
    only: str = ""

    async def read(self, database: Database, columns: Sequence[str], after: Key = ()) -> AsyncGenerator[list[Row]]:
        """The rows behind `after`, a value of the key, page by page: the key, then `columns`.

        Raises:
            StorageUnavailableError: the database cannot be read now.
        """
        length = " + ".join(f"coalesce(length({column}), 0)" for column in self.large) or "0"
        while until := self._end(await database.read(*self._select(length, f" LIMIT {PAGE}", after))):
            yield await database.read(*self._select(", ".join(columns), "", after, until))
            after = until

    def _end(self, sizes: Sequence[Row]) -> Key:
        """The key of the last of these rows that is read with those before it; () when there are none."""
        total = 0
        for *key, size in sizes:
            total += size
            if total >= PAGE_BYTES:
                return tuple(key)
        return sizes[-1][:-1] if sizes else ()

    def _select(self, columns: str, limit: str, after: Key, until: Key = ()) -> tuple[Any, ...]:
        key, width = ", ".join(self.key), len(self.key)
        conditions = [self.only] if self.only else []
        if after:
            conditions.append(f"({key}) > ({placeholders(1, width)})")
        if until:
            conditions.append(f"({key}) <= ({placeholders(1 + len(after), width)})")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return (f"SELECT {key}, {columns} FROM {self.table}{where} ORDER BY {key}{limit}", *after, *until)
