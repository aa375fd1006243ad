"""The columns that hold texts, arguments and results, and what their sealed values are bound to."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from dialog_engine.errors import ConfigurationError, StorageUnavailableError
from dialog_engine.storage.database import Database, Transaction
from plugins_contract.encryption import MARK, SEALED, Cipher

KEYS_IN_USE = "encryption_keys"
"""The row of `meta` with the ids of the keys that may have sealed something in this store."""
ALL_SEALED = "all_sealed"
"""The row of `meta` which says that everything in this store is sealed: `dialog-engine encrypt` has run to its end."""
LOOK_SECONDS = 5.0
"""How often an engine looks whether that has happened."""


@dataclass(frozen=True, slots=True)
class SealedTable:
    """A table with sealed columns. `bound_to` are the columns to whose values they are bound."""

    name: str
    primary_key: Sequence[str]
    bound_to: Sequence[str]
    columns: Sequence[str]
    only: str = ""
    """SQL of a condition on the rows."""


TABLES = (
    SealedTable("sessions", ("session_id",), ("session_id",), ("title",)),
    SealedTable("turns", ("turn_id",), ("turn_id",), ("error_message",)),
    SealedTable("messages", ("message_id",), ("turn_id", "role"), ("content", "reasoning")),
    SealedTable("tool_calls", ("correlation_id",), ("correlation_id",), ("arguments", "extra", "outcome")),
    SealedTable("media", ("correlation_id", "number"), ("correlation_id", "number"), ("data",)),
    SealedTable("whole_results", ("correlation_id",), ("correlation_id",), ("whole",)),
    SealedTable("approvals", ("correlation_id",), ("correlation_id",), ("question", "decision")),
    SealedTable("meta", ("key",), ("key",), ("value",), "key = 'audit_digest_key'"),
)
"""In the outbox, fields of requests and facts are sealed too; they go with their row."""


def owner(column: str, *bound_to: str) -> str:
    """What a value is bound to. `column` is `table.column`."""
    return " ".join((column, *bound_to))


def open_text(cipher: Cipher, value: str, column: str, *bound_to: str) -> str:
    """The text of a column. Raises DecryptionError."""
    return cipher.open_text(value, owner(column, *bound_to)) if cipher.strict or value.startswith(MARK) else value


def open_data(cipher: Cipher, value: bytes, column: str, *bound_to: str) -> bytes:
    """The data of a column. Raises DecryptionError."""
    return cipher.open(value, owner(column, *bound_to)) if cipher.strict or value.startswith(SEALED) else value


async def check_keys(database: Database, cipher: Cipher) -> None:
    """Check that every key that may be in use in this store is there, and record the first one as in use.

    Raises:
        ConfigurationError: one is missing; the text names it. Nothing was changed.
    """

    def unit(tx: Transaction) -> None:
        missing = sorted(keys_in_use(tx) - cipher.ids)
        if missing:
            raise ConfigurationError(
                f"ENCRYPTION_KEYS_FILE: texts in the store are encrypted with the key {', '.join(missing)}, which is"
                " not there: add it as a further line, or retire it with `dialog-engine encrypt` where it still is"
            )
        if cipher.active:
            set_keys_in_use(tx, keys_in_use(tx) | {cipher.first})

    await database.write(unit)
    await note_all_sealed(database, cipher)


async def note_all_sealed(database: Database, cipher: Cipher) -> None:
    """Make the cipher strict if everything in this store is sealed."""
    if cipher.active and await database.read("SELECT value FROM meta WHERE key = $1", ALL_SEALED):
        cipher.strict = True


async def follow_all_sealed(database: Database, cipher: Cipher) -> None:
    """Look for that until cancelled: `dialog-engine encrypt` may run beside engines."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        with contextlib.suppress(StorageUnavailableError):
            if not cipher.strict:
                await note_all_sealed(database, cipher)


def keys_in_use(tx: Transaction) -> frozenset[str]:
    """The ids of the keys that may have sealed something."""
    rows = tx.execute("SELECT value FROM meta WHERE key = $1", KEYS_IN_USE)
    return frozenset(rows[0][0].split()) if rows else frozenset()


def set_keys_in_use(tx: Transaction, ids: frozenset[str]) -> None:
    """Record them."""
    tx.execute(
        "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        KEYS_IN_USE,
        " ".join(sorted(ids)),
    )
