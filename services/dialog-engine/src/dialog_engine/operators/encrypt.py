"""`dialog-engine encrypt`: encrypts everything in the store with the first key, so that other keys can be retired."""

import re
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from dialog_engine.chat.outbox import TURN_FINISHED, TurnFinished
from dialog_engine.config.store import StoreSettings
from dialog_engine.operators.pages import Pages
from dialog_engine.storage.database import Database, Row, Transaction, placeholders
from dialog_engine.storage.moves import check_not_moved
from dialog_engine.storage.schemas.sealed_columns import TABLES, SealedTable
from dialog_engine.storage.sealed import (
    ALL_SEALED,
    keys_in_use,
    note_all_sealed,
    set_keys_in_use,
)
from dialog_engine.storage.sqlite_file import open_sqlite
from dialog_engine.storage.statements import owner
from plugins_contract.encryption import CLEAR, SEALED, Cipher, fact_owner, key_of

_IN_PAYLOAD = re.compile(SEALED + rb"([0-9a-f]{8}):")


@dataclass(frozen=True, slots=True)
class Encrypted:
    """How many values of each table were written, and the ids of other keys that rows of the outbox still need."""

    written: Counter[str]
    still_needed: frozenset[str]


@asynccontextmanager
async def open_store(settings: StoreSettings) -> AsyncGenerator[Database]:
    """The store of the settings, which is not being moved. A SQLite file must not be in use by an engine."""
    if settings.database_url is None:
        opened: AbstractAsyncContextManager[Database] = open_sqlite(settings.outbox_path)
    else:
        from dialog_engine.storage.postgres import open_postgres  # noqa: PLC0415 -- psycopg is slow to import
        from dialog_engine.storage.postgres_connection import BULK_TIMES  # noqa: PLC0415

        opened = open_postgres(settings.database_url.get_secret_value(), 1, times=BULK_TIMES)
    async with opened as database:
        await check_not_moved(database)
        yield database


async def encrypt(database: Database, cipher: Cipher, *, remove: bool = False) -> Encrypted:
    """Encrypt what is clear or has another key than the first; with `remove` decrypt everything instead.

    Engines that share the store may run meanwhile: a value that they change is left to them.

    Raises:
        DecryptionError: a key is missing, or a value was changed, or is clear after an earlier run.
            What was written so far stays.
    """
    target = CLEAR if remove else cipher
    # What is clear in a store that was sealed is not sealed here as if it were ours.
    await note_all_sealed(database, cipher)
    if remove:
        await database.write(lambda tx: tx.execute("DELETE FROM meta WHERE key = $1", ALL_SEALED))
    written = Counter[str]()
    for table in TABLES:
        pages = Pages(table.name, table.primary_key, table.columns, table.only)
        async for rows in pages.read(database, (*table.bound_to, *table.columns)):
            changes = [change for row in rows for change in _changes(table, row, cipher, target)]
            if changes:
                written[table.name] += await database.write(lambda tx, changes=changes: _apply(tx, changes))

    def unit(tx: Transaction) -> frozenset[str]:
        if not remove:
            _seal_facts(tx, cipher)
        return _note_keys(tx, target.first)

    return Encrypted(written, await database.write(unit))


_Change = tuple[Any, ...]
"""A statement, the new value, the old value and the primary key."""


def _changes(table: SealedTable, row: Row, cipher: Cipher, target: Cipher) -> list[_Change]:
    values = row.by_name()
    key, bound_to = ([values[name] for name in names] for names in (table.primary_key, table.bound_to))
    changes: list[_Change] = []
    for column in table.columns:
        old = values[column]
        if not old or key_of(old) == target.first:
            continue
        belongs_to = owner(f"{table.name}.{column}", *bound_to)
        if isinstance(old, str):
            new = target.seal_text(cipher.open_text(old, belongs_to), belongs_to)
        else:
            new = target.seal(cipher.open(old, belongs_to), belongs_to)
        where = f"{column} = $2 AND ({', '.join(table.primary_key)}) = ({placeholders(3, len(key))})"
        changes.append((f"UPDATE {table.name} SET {column} = $1 WHERE {where}", new, old, *key))
    return changes


def _apply(tx: Transaction, changes: list[_Change]) -> int:
    return sum(tx.change(*change) for change in changes)


def _seal_facts(tx: Transaction, cipher: Cipher) -> None:
    """Seal the texts of facts that have waited since before there was a key. Engines refuse clear ones from then on."""
    for row in tx.execute("SELECT seq, payload FROM outbox WHERE event_type = $1", TURN_FINISHED):
        fact = msgspec.json.decode(row.payload, type=TurnFinished)
        sealed = {
            name: cipher.seal_text(cipher.open_text(text, belongs_to), belongs_to)
            for name, field, text in (
                ("user_message", "userMessage", fact.user_message),
                ("assistant_message", "assistantMessage", fact.assistant_message),
            )
            if text and not key_of(text)
            for belongs_to in [fact_owner(fact.turn_id, field)]
        }
        if sealed:
            encoded = msgspec.json.encode(msgspec.structs.replace(fact, **sealed))
            tx.execute("UPDATE outbox SET payload = $1 WHERE seq = $2", encoded, row.seq)


def _note_keys(tx: Transaction, first: str) -> frozenset[str]:
    """Record which keys are in use from now on. Returns those that the outbox needs besides `first`."""
    found = (key.decode() for row in tx.execute("SELECT payload FROM outbox") for key in _keys(row.payload))
    needed = keys_in_use(tx) & frozenset(found) - {first}
    set_keys_in_use(tx, needed | frozenset(filter(None, [first])))
    if first:
        tx.execute("INSERT INTO meta (key, value) VALUES ($1, '1') ON CONFLICT DO NOTHING", ALL_SEALED)
    return needed


def _keys(payload: bytes) -> list[bytes]:
    return _IN_PAYLOAD.findall(payload)
