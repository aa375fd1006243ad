"""Databases of a PostgreSQL server that tests use again: to make one takes 0.4 s."""

import asyncio
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from dialog_engine.storage.postgres import open_postgres
from tests.support.postgres import CONNECT_SECONDS, USER, PostgresServer

Connection = psycopg.Connection[Any]

_WRITABLE = "-c default_transaction_read_only=off"
_EMPTYING: tuple[LiteralString, ...] = (
    "DROP SCHEMA public CASCADE",
    "CREATE SCHEMA public AUTHORIZATION pg_database_owner",
    "GRANT USAGE ON SCHEMA public TO PUBLIC",
    "GRANT CONNECT ON DATABASE {} TO PUBLIC",
    f"ALTER DATABASE {{}} OWNER TO {USER}",
    "ALTER DATABASE {} RESET ALL",
)
_DESCRIBING = """
    WITH tables AS (SELECT * FROM pg_class WHERE relnamespace = 'public'::regnamespace), parts AS (
        SELECT concat_ws(' ', relname, relacl) AS part FROM tables
        UNION ALL SELECT concat_ws(' ', relname, attnum, attname, atttypid, attnotnull)
            FROM pg_attribute JOIN tables t ON attrelid = t.oid
        UNION ALL SELECT concat_ws(' ', relname, tgname, tgenabled) FROM pg_trigger JOIN tables t ON tgrelid = t.oid
        UNION ALL SELECT concat_ws(' ', datname, datdba, datacl, setconfig)
            FROM pg_database d LEFT JOIN pg_db_role_setting ON setdatabase = d.oid WHERE datname = current_database()
        UNION ALL SELECT concat_ws(' ', proname, prosrc) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    )
    SELECT string_agg(part, E'\\n' ORDER BY part) FROM parts"""


@dataclass(frozen=True)
class Made:
    """A database whose tables were just made: what is there, and the rows that it begins with."""

    description: str
    tables: tuple[str, ...]
    rows: dict[str, list[tuple[Any, ...]]]


class Databases:
    """Those of one server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._without_tables: list[str] = []
        self._with_tables: dict[str, Made] = {}

    @contextmanager
    def without_tables(self) -> Generator[str]:
        """The URI of an empty database for as long as the block."""
        url = self._without_tables.pop() if self._without_tables else self._server.create_database()
        yield url
        with _alone(url) as connection:
            _empty(connection)
        self._without_tables.append(url)

    @contextmanager
    def without_rows(self) -> Generator[str]:
        """The URI of a database that an engine has opened, and no more, for as long as the block. Its tables are made
        again, which takes 0.1 s of processor time, if they were changed."""
        if self._with_tables:
            url, made = self._with_tables.popitem()
        else:
            url = self._server.create_database()
            made = _make_tables(url)
        yield url
        with _alone(url) as connection:
            is_as_made = _description(connection) == made.description
            if is_as_made:
                _delete_rows(connection, made)
            else:
                _empty(connection)
        self._with_tables[url] = made if is_as_made else _make_tables(url)


@contextmanager
def _alone(url: str) -> Generator[Connection]:
    """A connection, when all others of the database have ended."""
    with closing(
        psycopg.connect(url, autocommit=True, options=_WRITABLE, connect_timeout=CONNECT_SECONDS)
    ) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        yield connection


def _make_tables(url: str) -> Made:
    async def open_once() -> None:
        async with open_postgres(url, 1):
            pass

    with ThreadPoolExecutor(1) as thread:  # in this one a loop may run already
        thread.submit(asyncio.run, open_once()).result()
    with _alone(url) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        rows = {
            name: connection.execute(sql.SQL("TABLE {}").format(sql.Identifier(name))).fetchall() for (name,) in found
        }
        return Made(_description(connection), tuple(rows), {name: each for name, each in rows.items() if each})


def _description(connection: Connection) -> str:
    [(description,)] = connection.execute(_DESCRIBING).fetchall()
    return str(description)


def _delete_rows(connection: Connection, made: Made) -> None:
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")  # no trigger refuses it
        for name in made.tables:
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))
        for name, rows in made.rows.items():
            places = sql.SQL(", ").join([sql.Placeholder()] * len(rows[0]))
            statement = sql.SQL("INSERT INTO {} VALUES ({})").format(sql.Identifier(name), places)
            connection.cursor().executemany(statement, rows)
        connection.execute("SELECT setval(seqrelid, seqstart, false) FROM pg_sequence")


def _empty(connection: Connection) -> None:
    for statement in _EMPTYING:
        connection.execute(sql.SQL(statement).format(sql.Identifier(connection.info.dbname)))
