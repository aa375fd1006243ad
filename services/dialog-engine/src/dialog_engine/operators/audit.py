"""`dialog-engine audit`: reads the audit of a store, also while engines run."""

import json
import sqlite3
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from callstream_runtime.visible import visible
from dialog_engine.config.store import StoreSettings
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.storage.audit import NAME_MAX, TEXT_MAX, fitted
from dialog_engine.storage.audit_chain import EVENT
from dialog_engine.storage.database import Row as Stored
from dialog_engine.storage.database import named

IDS = ("session_id", "turn_id", "correlation_id")
PAGE = 1_000
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which events are shown. Empty values do not restrict. `since_ms` is Unix milliseconds; `name` is an id of a
    session, a turn or a call; `tool` is a tool's name or that of its server."""

    since_ms: int = 0
    subject: str = ""
    tool: str = ""
    action: str = ""
    name: str = ""


class Query(Protocol):
    """Runs a statement with `$1` parameters."""

    def __call__(self, sql: str, *parameters: Any) -> list[Stored]:
        """Its rows."""
        ...


def events(query: Query, wanted: AuditFilter) -> Generator[Row]:
    """The events that match, oldest first, read in pages."""
    seq = 0
    while True:
        rows = query(
            f"SELECT {', '.join(EVENT)} FROM audit WHERE seq > $1 AND at >= $2"
            " AND ($3 = '' OR subject = $3) AND ($4 = '' OR tool = $4 OR server = $4)"
            " AND ($5 = '' OR action = $5) AND ($6 = '' OR $6 IN (session_id, turn_id, correlation_id))"
            " ORDER BY seq LIMIT $7",
            seq,
            wanted.since_ms,
            fitted(wanted.subject, TEXT_MAX),
            fitted(wanted.tool, NAME_MAX),
            wanted.action,
            wanted.name,
            PAGE,
        )
        yield from (row.by_name() for row in rows)
        if len(rows) < PAGE:
            return
        seq = rows[-1].seq


def as_json(row: Row) -> str:
    """An event as one line of JSON, with the fields that are set."""
    return json.dumps({name: value for name, value in row.items() if value != ""}, ensure_ascii=True)


def at_text(at_ms: int) -> str:
    """A time in Unix milliseconds, for people."""
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # no engine has written it
        return f"{at_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_text(row: Row) -> str:
    """An event as one line for people. What a model or a client has named is escaped."""
    at = at_text(row["at"])
    who = row["subject"] + (f" (key {row['key_id']})" if row["key_id"] else "")
    what = [row["tool"], row["outcome"], next((row[name] for name in reversed(IDS) if row[name]), "")]
    return "  ".join(visible(part) for part in (at, f"{row['action']:<16}", who, *what) if part)


@contextmanager
def opened(settings: StoreSettings) -> Generator[Query]:
    """The store of the settings, for reading.

    Raises:
        StorageUnavailableError: it cannot be read, or has no audit.
    """
    if settings.database_url is None:
        with _sqlite(settings.outbox_path) as query:
            yield query
    else:
        from dialog_engine.operators.postgres import opened_postgres  # noqa: PLC0415 -- psycopg is slow to import

        with opened_postgres(settings.database_url.get_secret_value()) as query:
            yield query


@contextmanager
def _sqlite(path: Path) -> Generator[Query]:
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)) as connection:

            def query(sql: str, *parameters: Any) -> list[Stored]:
                found = connection.execute(sql, {str(number): value for number, value in enumerate(parameters, 1)})
                return named((column[0] for column in found.description), found.fetchall())

            yield query
    except sqlite3.Error as error:
        raise StorageUnavailableError(f"OUTBOX_PATH {path} cannot be read: {error}") from error


def show(rows: Iterable[Row], *, as_lines_of_json: bool) -> Generator[str]:
    """The events as lines."""
    return (as_json(row) if as_lines_of_json else as_text(row) for row in rows)
