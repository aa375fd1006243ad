"""The store as tests look into it from outside, while engines work: one file, or the database of several engines."""

import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal

import psycopg

from tests.support.postgres import CONNECT_SECONDS

Kind = Literal["sqlite", "postgres"]
AWAY = (sqlite3.OperationalError, psycopg.OperationalError, psycopg.errors.UndefinedTable)
"""What a look raises while the database cannot be asked, or has no tables yet."""


class Store:
    """A SQLite file, or the URI of a PostgreSQL database. It may be away: see `AWAY`."""

    def __init__(self, where: Path | str) -> None:
        self.where = where
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None

    @property
    def kind(self) -> Kind:
        return "sqlite" if isinstance(self.where, Path) else "postgres"

    @property
    def env(self) -> dict[str, str]:
        """The settings that send an engine there."""
        return {"OUTBOX_PATH" if self.kind == "sqlite" else "DATABASE_URL": str(self.where)}

    @property
    def size(self) -> int:
        """Bytes on the disk, those of the log of SQLite included."""
        if isinstance(self.where, Path):
            return sum(path.stat().st_size for path in self.where.parent.glob(f"{self.where.name}*"))
        [(size,)] = self.rows("SELECT pg_database_size(current_database())")
        return size

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What the query finds in one look at what is committed. Raises `AWAY`. From any thread."""
        if isinstance(self.where, Path):
            with closing(sqlite3.connect(self.where, timeout=10)) as file:
                return file.execute(query).fetchall()
        with self._lock:
            if self._connection is not None:
                with suppress(psycopg.OperationalError):  # the server has been away since
                    return self._connection.execute(query.encode()).fetchall()
                self._connection.close()
            self._connection = None
            self._connection = psycopg.connect(self.where, autocommit=True, connect_timeout=CONNECT_SECONDS)
            return self._connection.execute(query.encode()).fetchall()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def count(self, table: str) -> int:
        """How many rows a table has, or of it what a `WHERE` behind its name leaves."""
        [(count,)] = self.rows(f"SELECT count(*) FROM {table}")  # noqa: S608 -- the harness's own words
        return count


def quoted(values: Iterable[str]) -> str:
    """Ids and other plain texts as a list for `IN (…)`; an empty one finds nothing."""
    return ", ".join(f"'{value}'" for value in values) or "NULL"
