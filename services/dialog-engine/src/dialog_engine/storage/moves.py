"""The mark of a store that `dialog-engine move` has emptied into another one, or is filling."""

import msgspec

from dialog_engine.errors import ConfigurationError
from dialog_engine.storage.database import Database, Transaction

KEY = "move"
"""The row of `meta` with the mark."""


class Mark(msgspec.Struct, frozen=True):
    """`id` names the move. `to` is where it leads to, in the store that is moved; '' in the one that is filled, which
    has in `copied` the key of the last row of each table instead. `done`: nothing is left to be copied."""

    id: str
    to: str = ""
    done: bool = False
    copied: dict[str, int] = {}


async def read_mark(database: Database) -> Mark | None:
    """The mark of the store; None without one."""
    rows = await database.read("SELECT value FROM meta WHERE key = $1", KEY)
    return msgspec.json.decode(rows[0].value, type=Mark) if rows else None


def write_mark(tx: Transaction, mark: Mark) -> None:
    """Write or replace the mark."""
    tx.execute(
        "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        KEY,
        msgspec.json.encode(mark).decode(),
    )


def remove_mark(tx: Transaction) -> None:
    """Remove the mark."""
    tx.execute("DELETE FROM meta WHERE key = $1", KEY)


async def check_not_moved(database: Database) -> None:
    """Check that this is not one half of a move: two engines would run the same turns.

    Raises:
        ConfigurationError: it is; the text says what to do.
    """
    match await read_mark(database):
        case Mark(to="", done=False):
            raise ConfigurationError(
                "DATABASE_URL: `dialog-engine move` has not filled this database completely: run it again until it ends"
            )
        case Mark(done=False, to=to):
            raise ConfigurationError(
                f"OUTBOX_PATH: `dialog-engine move` has begun to move this file to {to}: run it again until it ends, or"
                " `dialog-engine move --cancel` to keep the file"
            )
        case Mark(to=to):
            raise ConfigurationError(f"OUTBOX_PATH: this file was moved to {to}: set DATABASE_URL")
        case None:
            pass
