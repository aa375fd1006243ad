"""Units of work that wait for a lock of PostgreSQL."""

import asyncio

from dialog_engine.storage.database import Database
from tests.support.waiting import wait_until


async def blocked(database: Database, number: int) -> None:
    """Wait until so many units wait for a lock; in SQLite they wait in their order in any case."""
    waiting_for_locks = (
        "SELECT count(*) AS units FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    async def wait() -> bool:
        [row] = await database.read(waiting_for_locks)
        return row.units == number

    if "Postgres" in type(database).__name__:
        await wait_until(wait, what=f"{number} units that wait")
    else:
        await asyncio.sleep(0)
