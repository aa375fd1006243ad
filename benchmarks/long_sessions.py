"""What the length of a session costs a turn before its first token: reading what is sent to the model.

    python -m benchmarks.long_sessions [--rounds 80] [--postgres]

A session of 5,000 messages and 500 images is compared with one that holds only what is sent, so that the model gets the
same. Both are read in turn: their newest turns are read, opened, cut, and their images fetched. The rest of a turn does
not depend on its session.
"""

import argparse
import asyncio
import base64
import json
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from dialog_engine.chat.conversation import Memory, newest_said
from dialog_engine.operators.split_media import split_media
from dialog_engine.storage.archive import SqlArchive
from dialog_engine.storage.audit import AuditTrail
from dialog_engine.storage.calls import SqlCalls
from dialog_engine.storage.database import Database
from dialog_engine.storage.postgres import open_postgres
from dialog_engine.storage.sqlite import open_sqlite
from plugins_contract.encryption import CLEAR
from tests.support.long_sessions import write_session
from tests.support.postgres import PostgresServer

IMAGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(200_000)).decode()
MEMORY = Memory(42, 1_000_000)
SHORT_TURNS = 20


async def measure(database: Database, rounds: int) -> dict[str, float]:
    """The medians of reading both sessions, in milliseconds, and their ratio."""
    await database.write(lambda tx: write_session(tx, "long", "ann", 2_500, image=IMAGE))
    await database.write(lambda tx: write_session(tx, "short", "ann", SHORT_TURNS, image=IMAGE))
    await split_media(database, CLEAR)
    archive = SqlArchive(database, SqlCalls(database, "engine", lambda _: None, AuditTrail("engine", b"key")))
    for session in ("long", "short"):
        kept, _ = await newest_said(archive, session, MEMORY)
        assert len(kept) >= 2 * SHORT_TURNS - 2, len(kept)
    took = {"long": list[float](), "short": list[float]()}
    for number in range(rounds):
        for session in ("long", "short") if number % 2 else ("short", "long"):
            began = time.perf_counter()
            await newest_said(archive, session, MEMORY)
            took[session].append((time.perf_counter() - began) * 1000)
    medians = {session: round(median(each), 2) for session, each in took.items()}
    return medians | {"ratio": round(medians["long"] / medians["short"], 2)}


@asynccontextmanager
async def opened(*, postgres: bool) -> AsyncGenerator[Database]:
    """A new SQLite file, or a new database of an embedded PostgreSQL."""
    with tempfile.TemporaryDirectory(prefix="callstream-postgres-") as folder:
        if not postgres:
            async with open_sqlite(Path(folder) / "engine.sqlite3") as database:
                yield database
            return
        server = PostgresServer(Path(folder))
        server.start()
        try:
            server.create_database("long")
            async with open_postgres(server.url_of("long"), 4) as database:
                yield database
        finally:
            server.stop()


async def main(rounds: int, *, postgres: bool) -> None:
    """Measure and write the figures as JSON."""
    async with opened(postgres=postgres) as database:
        sys.stdout.write(json.dumps(await measure(database, rounds)) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--postgres", action="store_true")
    found = parser.parse_args()
    asyncio.run(main(found.rounds, postgres=found.postgres))
