"""The keys that the store needs for its sealed values (`statements`)."""

import asyncio
import contextlib

from dialog_engine.errors import ConfigurationError, StorageUnavailableError
from dialog_engine.storage.database import Database, Transaction
from plugins_contract.encryption import Cipher

KEYS_IN_USE = "encryption_keys"
"""The row of `meta` with the ids of the keys that may have sealed something in this store."""
ALL_SEALED = "all_sealed"
"""The row of `meta` which says that everything in this store is sealed: `dialog-engine encrypt` has run to its end."""
LOOK_SECONDS = 5.0
"""How often an engine looks whether that has happened."""


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


async def follow_all_sealed(database: Database, cipher: Cipher, look_seconds: float = LOOK_SECONDS) -> None:
    """Look for that until cancelled: `dialog-engine encrypt` may run beside engines."""
    while True:
        await asyncio.sleep(look_seconds)
        with contextlib.suppress(StorageUnavailableError):
            if not cipher.strict:
                await note_all_sealed(database, cipher)


def keys_in_use(tx: Transaction) -> frozenset[str]:
    """The ids of the keys that may have sealed something."""
    rows = tx.execute("SELECT value FROM meta WHERE key = $1", KEYS_IN_USE)
    return frozenset(rows[0].value.split()) if rows else frozenset()


def set_keys_in_use(tx: Transaction, ids: frozenset[str]) -> None:
    """Record them."""
    tx.execute(
        "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        KEYS_IN_USE,
        " ".join(sorted(ids)),
    )
