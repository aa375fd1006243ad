"""`dialog-engine move`: moves everything in the SQLite file of one engine into an empty PostgreSQL (ADR 0073).

Rows are copied as they are, encrypted ones too, in pages. Each page is committed together with its place, so that a
move that was interrupted continues there. Meanwhile, and afterwards, no engine starts on the file.
"""

import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from dialog_engine.config.store import StoreSettings
from dialog_engine.errors import ConfigurationError
from dialog_engine.operators import audit, audit_chain
from dialog_engine.operators.pages import Pages
from dialog_engine.storage.database import Database, Row, Transaction, placeholders
from dialog_engine.storage.moves import KEY, Mark, read_mark, remove_mark, write_mark
from dialog_engine.storage.postgres import open_postgres
from dialog_engine.storage.postgres_connection import BULK_TIMES
from dialog_engine.storage.postgres_server import place_of
from dialog_engine.storage.sealed import check_keys
from dialog_engine.storage.sqlite_file import open_sqlite
from plugins_contract.messages import new_id

OWN_ROWS = ("engine_id", "release", "schema_version", "tables_version", "written_at", KEY)
"""The rows of `meta` that belong to one database, and not to what is in it."""
_DIGESTS = 1 << 256


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the file. `columns` have the types INTEGER, TEXT or BLOB; `generated` is the last value of its
    AUTOINCREMENT key, 0 without one."""

    name: str
    columns: dict[str, str]
    key: tuple[str, ...]
    needs: frozenset[str]
    generated: int

    @property
    def large(self) -> list[str]:
        """The columns with texts or data."""
        return [name for name, type_ in self.columns.items() if type_ != "INTEGER"]


@dataclass(frozen=True, slots=True)
class Content:
    """How many rows there are, and the sum of their digests, which does not depend on their order."""

    rows: int = 0
    digest: int = 0

    def plus(self, digests: Sequence[bytes]) -> "Content":
        """With these rows."""
        added = sum(int.from_bytes(digest) for digest in digests)
        return Content(self.rows + len(digests), (self.digest + added) % _DIGESTS)

    def __str__(self) -> str:
        return f"{self.rows} rows, sha256 sum {self.digest:064x}"


@dataclass(slots=True)
class Moved:
    """The report of a move. Without `problems` both stores have the same content, and the move is complete."""

    content: dict[str, Content] = field(default_factory=dict[str, Content])
    audit: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])


@asynccontextmanager
async def _opened(settings: StoreSettings) -> AsyncGenerator[tuple[Database, Database, str]]:
    """The file, the PostgreSQL, and where that is."""
    if settings.database_url is None:
        raise ConfigurationError("DATABASE_URL: is not set: it names the PostgreSQL that OUTBOX_PATH is moved to")
    url = settings.database_url.get_secret_value()
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(_opened_file(settings))
        yield (
            source,
            await stack.enter_async_context(open_postgres(url, 1, times=BULK_TIMES)),
            place_of(url),
        )


@asynccontextmanager
async def _opened_file(settings: StoreSettings) -> AsyncGenerator[Database]:
    if not settings.outbox_path.exists():
        raise ConfigurationError(f"OUTBOX_PATH: there is no file {settings.outbox_path}")
    async with open_sqlite(settings.outbox_path) as source:
        yield source


async def cancel(settings: StoreSettings) -> None:
    """Give a move up that has not ended: engines may use the file again.

    Raises:
        ConfigurationError: there is none, or it has ended.
    """
    async with _opened_file(settings) as source:
        mark = await read_mark(source)
        if mark is None or mark.done:
            raise ConfigurationError(
                f"OUTBOX_PATH: {f'the move to {mark.to} has ended' if mark else 'no move of this file has begun'}"
            )
        await source.write(remove_mark)


async def move(settings: StoreSettings, report: Callable[[str], None]) -> Moved:
    """Move the store, or continue. `report` is called with a line for each table that is copied.

    Raises:
        ConfigurationError: the settings name no such stores, the PostgreSQL is not empty, or a row cannot be stored
            there, or a key of the store is missing. What was copied so far stays.
        StorageUnavailableError: an engine uses the file, or one of the stores cannot be used now.
    """
    async with _opened(settings) as (source, target, to):
        tables = await _tables(source)
        await check_keys(source, settings.cipher)  # the audit is verified with them
        audit_of_file = _verified(settings, of_file=True)
        mark = await _begin(source, target, to, [table.name for table in tables])
        if mark is None:
            return Moved(problems=[f"this file was moved to {to} before"])
        for table in tables:
            count = await _copy(table, source, target, mark)
            report(f"{table.name}: {count} rows copied")
        moved = await _compared(tables, source, target)
        moved.audit = _verified(settings, of_file=False)
        if moved.audit != audit_of_file:
            moved.problems.append("the audit verifies otherwise than in the file")
        if not moved.problems:
            # The file first: at no moment may engines start on both.
            await source.write(lambda tx: write_mark(tx, Mark(mark.id, to, done=True)))
            await target.write(remove_mark)
        return moved


async def _tables(source: Database) -> list[Table]:
    """The tables of the file but `meta`, each after those that it refers to."""
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name <> 'meta'"
    generated = {row.name: row.seq for row in await source.read("SELECT name, seq FROM sqlite_sequence")}
    found: dict[str, Table] = {}
    for table in await source.read(names):
        name = table.name
        columns = await source.read("SELECT name, type, pk FROM pragma_table_info($1) ORDER BY pk, cid", name)
        needs = await source.read('SELECT "table" FROM pragma_foreign_key_list($1)', name)
        found[name] = Table(
            name,
            {column.name: column.type for column in columns},
            tuple(column.name for column in columns if column.pk),
            frozenset(row.table for row in needs if row.table != name),
            generated.get(name, 0),
        )
    order = TopologicalSorter({name: table.needs for name, table in found.items()}).static_order()
    return [found[name] for name in order]


async def _begin(source: Database, target: Database, to: str, tables: Sequence[str]) -> Mark | None:
    """Mark both stores, unless that was done before. Returns the mark of the target; None when the move has ended."""
    begun, filled = await read_mark(source), await read_mark(target)
    if begun and begun.done and filled is None and begun.to == to:
        return None
    if begun and begun.done and (filled is None or filled.id != begun.id):
        raise ConfigurationError(f"OUTBOX_PATH: this file was moved to {begun.to}: set DATABASE_URL to that")
    if begun and filled and filled.id == begun.id:
        return filled
    mark = Mark(begun.id if begun else new_id())
    rows = await source.read(
        f"SELECT key, value FROM meta WHERE key NOT IN ({placeholders(1, len(OWN_ROWS))})", *OWN_ROWS
    )
    await source.write(lambda tx: write_mark(tx, Mark(mark.id, to)))

    def unit(tx: Transaction) -> None:
        used = [name for name in tables if tx.execute(f"SELECT 1 FROM {name} LIMIT 1")]
        if used or filled:
            raise ConfigurationError(
                f"DATABASE_URL: {to} is not empty: it has {', '.join(used) or 'another move'}. Name an empty database,"
                " on which no engine has been started"
            )
        tx.execute("DELETE FROM meta WHERE key NOT IN ('release', 'schema_version', 'tables_version')")
        tx.execute_many("INSERT INTO meta (key, value) VALUES ($1, $2)", rows)
        write_mark(tx, mark)

    try:
        await target.write(unit)
    except ConfigurationError:
        if begun is None:
            await source.write(remove_mark)
        raise
    return mark


async def _copy(table: Table, source: Database, target: Database, mark: Mark) -> int:
    """Copy the rows that are not copied yet, and the state of the generated key. Returns how many it copied."""
    names = ", ".join(table.columns)
    insert = (
        f"INSERT INTO {table.name} ({names}) OVERRIDING SYSTEM VALUE VALUES ({placeholders(1, len(table.columns))})"
    )
    count, last = 0, mark.copied.get(table.name, 0)
    async for rows in Pages(table.name, ["rowid"], table.large).read(source, list(table.columns), (last,)):
        _check_text(table, rows)

        def unit(tx: Transaction, rows: Sequence[Row] = rows) -> None:
            tx.execute_many(insert, [row[1:] for row in rows])
            mark.copied[table.name] = rows[-1][0]
            write_mark(tx, mark)

        await target.write(unit)
        count += len(rows)
    if table.generated:
        sequence = f"SELECT setval(pg_get_serial_sequence('{table.name}', '{table.key[0]}'), $1)"
        await target.write(lambda tx: tx.execute(sequence, table.generated))
    return count


def _check_text(table: Table, rows: Sequence[Row]) -> None:
    for rowid, *values in rows:
        for column, value in zip(table.columns, values, strict=True):
            if isinstance(value, str) and "\0" in value:
                raise ConfigurationError(
                    f"OUTBOX_PATH: {table.name}.{column} of the row {rowid} has the character U+0000, which PostgreSQL"
                    " cannot store: replace it in the file, or delete the session that it belongs to"
                )


async def _compared(tables: Sequence[Table], source: Database, target: Database) -> Moved:
    moved = Moved()
    for table in tables:
        copied = Content()
        digest = " || ',' || ".join(_digest_sql(name, type_) for name, type_ in table.columns.items())
        by_key = Pages(table.name, table.key, table.large)
        async for rows in by_key.read(target, [f"sha256(convert_to({digest}, 'UTF8'))"]):
            copied = copied.plus([row[-1] for row in rows])
        own = moved.content[table.name] = await _content(table, source)
        if own != copied:
            moved.problems.append(f"{table.name}: the file has {own}; the PostgreSQL has {copied}")
    return moved


async def _content(table: Table, source: Database) -> Content:
    found = Content()
    async for rows in Pages(table.name, ["rowid"], table.large).read(source, list(table.columns)):
        found = found.plus([_digest(row[1:]) for row in rows])
    return found


def _digest(row: Sequence[object]) -> bytes:
    """The digest of a row: the SHA-256 of its integers and of the SHA-256 of its other values."""
    return hashlib.sha256(",".join(map(_value_digest, row)).encode()).digest()


def _value_digest(value: object) -> str:
    match value:
        case None:
            return "-"
        case str():
            return hashlib.sha256(value.encode()).hexdigest()
        case bytes():
            return hashlib.sha256(value).hexdigest()
        case _:
            return str(value)


def _digest_sql(column: str, type_: str) -> str:
    """The same in PostgreSQL."""
    match type_:
        case "INTEGER":
            value = f"{column}::text"
        case "TEXT":
            value = f"encode(sha256(convert_to({column}, 'UTF8')), 'hex')"
        case _:
            value = f"encode(sha256({column}), 'hex')"
    return f"coalesce({value}, '-')"


def _verified(settings: StoreSettings, *, of_file: bool) -> list[str]:
    """What `audit verify` reports of one of the two stores."""
    only = settings.model_copy(update={"database_url": None}) if of_file else settings
    with audit.opened(only) as query:
        return [*audit_chain.verify(query, settings.cipher).lines()]
