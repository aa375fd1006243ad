"""A connection of an operator's command to PostgreSQL."""

from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from dialog_engine.errors import StorageUnavailableError
from dialog_engine.storage.database import Row
from dialog_engine.storage.postgres_connection import rows_of

CONNECT_SECONDS = 5


@contextmanager
def opened_postgres(url: str) -> Generator[Any]:
    """Runs statements with `$1` parameters, read-only.

    Raises:
        StorageUnavailableError: the database cannot be read. The text holds no password.
    """
    try:
        connection = psycopg.connect(
            url, autocommit=True, cursor_factory=psycopg.RawCursor, connect_timeout=CONNECT_SECONDS
        )
        with closing(connection):
            connection.execute(b"SET default_transaction_read_only = on")

            def query(sql: str, *parameters: Any) -> list[Row]:
                return rows_of(connection.execute(sql.encode(), parameters))

            yield query
    except psycopg.Error as error:
        reason = str(error).strip().partition("\n")[0]
        raise StorageUnavailableError(f"DATABASE_URL: the store cannot be read: {reason}") from None
