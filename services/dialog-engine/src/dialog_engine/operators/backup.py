"""`dialog-engine backup`, `restore` and `restored`: a copy of the store, and a store that is made from one.

PostgreSQL is copied by its own `pg_dump` and `psql`. What a backup does not know is what happened to its calls after it
was made, so every restore ends with `mark_restored`, before an engine starts (ADR 0072).
"""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO
from urllib.parse import quote

from dialog_engine.chat.ownership import OwnershipTimes
from dialog_engine.config.store import StoreSettings
from dialog_engine.errors import ConfigurationError, StorageUnavailableError
from dialog_engine.operators.encrypt import open_store
from dialog_engine.storage.outbox import mark_restored
from dialog_engine.storage.sqlite_file import open_sqlite, owned

LIVING = "SELECT engine_id FROM engines WHERE lease_until > now_ms()"
LOOK_SECONDS = 0.5


def back_up(settings: StoreSettings, output: BinaryIO) -> None:
    """Write a consistent copy of the SQLite file, also while an engine runs. The copy is made beside the file first.

    Raises:
        ConfigurationError: the store is a PostgreSQL, or the output is a terminal.
        StorageUnavailableError: the file cannot be copied.
    """
    path = _file(settings, "pg_dump")
    if output.isatty():
        raise ConfigurationError("a backup is not text: redirect the output to a file")
    try:
        with (
            NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.backup-") as copy,
            closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True)) as live,
            closing(sqlite3.connect(copy.name)) as target,
        ):
            live.backup(target)
            target.close()
            shutil.copyfileobj(copy, output)
            output.flush()
    except (OSError, sqlite3.Error) as error:
        raise StorageUnavailableError(f"OUTBOX_PATH {path} cannot be backed up: {error}") from error


async def restore(settings: StoreSettings, backup: BinaryIO) -> int:
    """Replace the SQLite file by a backup, marked as one. The file stays as it is until the backup has been checked.

    Returns how many calls without an answer it has.

    Raises:
        ConfigurationError: the store is a PostgreSQL, or the backup is that of a later release.
        StorageUnavailableError: an engine uses the file, or the backup is not one, or cannot be written.
    """
    path = _file(settings, "pg_restore")
    made = path.with_name(f"{path.name}.restored")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with owned(path):
            try:
                with made.open("wb") as file:
                    shutil.copyfileobj(backup, file)
                _check(made)
                async with open_sqlite(made) as database:
                    marked = await database.write(mark_restored)
                _remove(path, "-wal", "-shm")  # they belong to the file that is replaced
                made.replace(path)
            finally:
                _remove(made, "", "-wal", "-shm", ".lock")
    except (OSError, sqlite3.Error) as error:
        raise StorageUnavailableError(f"OUTBOX_PATH {path} cannot be restored: {error}") from error
    return marked


async def restored(settings: StoreSettings) -> int:
    """Mark a store that was restored by its own tools. Returns how many calls without an answer it has.

    Raises:
        StorageUnavailableError: an engine uses the store.
    """
    async with open_store(settings) as database:
        # A backup has the leases of its engines, which have run out by then. Those of living ones have not.
        deadline = asyncio.get_running_loop().time() + OwnershipTimes().lease + 1
        while living := await database.read(LIVING):
            if asyncio.get_running_loop().time() > deadline:
                raise StorageUnavailableError(f"engine {living[0].engine_id} uses the store: stop all engines first")
            await asyncio.sleep(LOOK_SECONDS)
        return await database.write(mark_restored)


def _file(settings: StoreSettings, tool: str) -> Path:
    if settings.database_url is not None:
        raise ConfigurationError(f"DATABASE_URL: the store is a PostgreSQL: use {tool} (docs/operations.md)")
    return settings.outbox_path


def _check(path: Path) -> None:
    """Refuse what is no store: an empty file, for example, would become a new one."""
    with closing(sqlite3.connect(path)) as file:
        [(verdict,)] = file.execute("PRAGMA quick_check(1)").fetchall()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"the backup is damaged: {verdict}")
        if not file.execute("SELECT 1 FROM sqlite_master WHERE name = 'messages'").fetchall():
            raise sqlite3.DatabaseError("the backup is empty, or not that of an engine")


def _remove(path: Path, *suffixes: str) -> None:
    for suffix in suffixes:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
