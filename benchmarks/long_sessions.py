"""What the length of a session costs a turn: the time to its first token, over HTTP through a real engine.

    python -m benchmarks.long_sessions [--rounds 60] [--postgres]

A session of 5,000 messages and 500 images, and one after 20 turns, are compared with one that holds only what is
sent, so that the model gets as many bytes of all three. They are asked in any order, and the turn is
deleted after each, so that a session stays as it is.
"""

import argparse
import asyncio
import base64
import json
import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psycopg

from benchmarks.relay.answers import Answer
from benchmarks.relay.measures import check
from benchmarks.relay.readers import Reader, connection, post
from benchmarks.relay.relays import Relay, callstream, provider
from dialog_engine.operators.split_media import split_media
from dialog_engine.storage.database import Database
from dialog_engine.storage.postgres import open_postgres
from dialog_engine.storage.sqlite_file import open_sqlite
from plugins_contract.encryption import CLEAR
from tests.support.long_sessions import write_session
from tests.support.postgres import PostgresServer

IMAGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(50_000)).decode()
SENT_TURNS = 10
SENT_MESSAGES = 2 * SENT_TURNS + 2
"""Two of the turns have made a call."""
SESSIONS = {"long": 2_500, "after 20 turns": 20, "only what is sent": SENT_TURNS}
"""The turns of each session. Every fifth has an image, of which two are sent."""
Execute = Callable[[str], Any]
_numbers = count(1)


async def measure(relay: Relay, execute: Execute, rounds: int) -> dict[str, dict[str, float]]:
    """The median times to the first token of each session, in ms, and as a multiple of that of the last one."""
    reader = await connection(relay.port)
    took = {session: list[float]() for session in SESSIONS}
    for number in range(rounds + 5):
        for session in random.sample([*SESSIONS], len(SESSIONS)):
            seconds = await first_token(relay, reader, session)
            execute(f"DELETE FROM turns WHERE turn_id = '{reader.field('x-turn-id')}'")  # noqa: S608 -- the engine's id
            if number >= 5:  # the first ones fill caches
                took[session].append(seconds * 1000)
    shortest = median(took["only what is sent"])
    return {each: {"ms": round(median(ms), 2), "ratio": round(median(ms) / shortest, 2)} for each, ms in took.items()}


async def first_token(relay: Relay, reader: Reader, session: str) -> float:
    """The seconds from a question in this session to the first token of its answer."""
    answer = Answer(next(_numbers), 3, 5.0)
    request = post(relay.port, relay.path, {"message": str(answer), "sessionId": session})
    began = perf_counter()
    reader.ask(request, answer.first.encode())
    marked = await reader.marked
    await reader.ended
    check(reader, answer)
    return marked - began


async def prepared(database: AbstractAsyncContextManager[Database]) -> None:
    """Write the sessions into a new database."""
    async with database as opened:
        for session, turns in SESSIONS.items():
            await opened.write(lambda tx, s=session, n=turns: write_session(tx, s, "local", n, image=IMAGE))
        await split_media(opened, CLEAR)


@contextmanager
def connected(where: str) -> Generator[Execute]:
    """A connection to a SQLite file or to a PostgreSQL, beside the engine's."""
    if where.startswith("postgres"):
        with psycopg.connect(where, autocommit=True) as connection:
            yield lambda sql: connection.execute(sql.encode())
        return
    with closing(sqlite3.connect(where, timeout=10, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        yield connection.execute


async def main(rounds: int, *, postgres: bool) -> None:
    """Measure and write the figures as JSON."""
    with tempfile.TemporaryDirectory(prefix="callstream-postgres-") as name, ExitStack() as stack:
        folder = Path(name)
        where, setting = str(folder / "engine.sqlite3"), "OUTBOX_PATH"
        if postgres:
            server = PostgresServer(folder)
            server.start()
            stack.callback(server.stop)
            server.create_database("long")
            where, setting = server.url_of("long"), "DATABASE_URL"
        await prepared(open_postgres(where, 4) if postgres else open_sqlite(Path(where)))
        settings = {setting: where, "HISTORY_MAX_MESSAGES": str(SENT_MESSAGES + 1), "LLM_PROFILE": "openai"}
        model = stack.enter_context(provider())
        relay = stack.enter_context(callstream(model.port, folder, **settings))
        execute = stack.enter_context(connected(where))
        sys.stdout.write(json.dumps(await measure(relay, execute, rounds)) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--postgres", action="store_true")
    found = parser.parse_args()
    asyncio.run(main(found.rounds, postgres=found.postgres))
