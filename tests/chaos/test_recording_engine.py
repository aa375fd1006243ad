"""What the recording engine notes: a refused write, and one that was taken although its turn was adopted."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, suppress

import psycopg
import pytest

from dialog_engine.errors import TurnFencedError
from dialog_engine.model import Turn
from dialog_engine.storage import fence as rules
from dialog_engine.storage import postgres as driver
from dialog_engine.storage import turns
from dialog_engine.storage.fence import fence
from dialog_engine.storage.postgres import open_postgres
from dialog_engine.storage.store import StoreTransaction
from dialog_engine.storage.turns import SqlTurns
from tests.chaos.faults import Faults
from tests.chaos.proxy import Proxy
from tests.chaos.recording_engine import Became, watch_writes
from tests.support.beginnings import begin
from tests.support.engine_stores import EngineStore, tool_call
from tests.support.postgres import PostgresServer, database_of
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.anyio

FINISH = turns._FINISH  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[Became]:
    """What becomes of each write of this process from now on."""
    for owner, name in ((rules, "_fence"), (SqlTurns, "finish"), (SqlTurns, "_fact")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back at the end
    notes: list[Became] = []
    watch_writes(lambda turn, epoch, became: notes.append(became))
    return notes


@pytest.fixture
def proxy(postgres: PostgresServer) -> Generator[Proxy]:
    with Proxy(postgres.port, redis=False) as proxy:
        yield proxy


@asynccontextmanager
async def running_turn(url: str) -> AsyncGenerator[tuple[EngineStore, Turn]]:
    async with open_postgres(url, 1) as database:
        store = EngineStore(database)
        yield store, await begin(store.turns, "ann", None, "Hi")


def adopt(url: str, turn: Turn) -> None:
    """Another engine becomes its owner. Waits for a transaction that has written the turn."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("UPDATE turns SET owner = 'another', epoch = epoch + 1 WHERE turn_id = %s", [turn.turn_id])


def locked(url: str, turn: Turn) -> bool:
    """Whether a transaction has written the turn and not ended."""
    with closing(psycopg.connect(url)) as connection, suppress(psycopg.errors.LockNotAvailable):
        connection.execute("SELECT 1 FROM turns WHERE turn_id = %s FOR UPDATE NOWAIT", [turn.turn_id])
        return False
    return True


async def test_a_write_of_which_the_answer_comes_after_the_adoption_is_not_taken(
    postgres: PostgresServer, postgres_url: str, proxy: Proxy, notes: list[Became], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "IDLE_SECONDS", 1)
    held = threading.Event()
    async with running_turn(postgres.url_of(database_of(postgres_url), port=proxy.port)) as (store, turn):

        def unit(tx: StoreTransaction) -> None:
            if not held.is_set():
                proxy.set(Faults(hold_replies=True))  # as if the engine were stopped when the server answers
                held.set()
            fence(tx, turn)

        writing = asyncio.create_task(store.store.write(unit))
        await asyncio.to_thread(wait_until_blocking, lambda: held.is_set() and locked(postgres_url, turn))
        await asyncio.to_thread(adopt, postgres_url, turn)
        proxy.clear()
        with pytest.raises(TurnFencedError):  # the server has ended the transaction, and the unit was run again
            await writing
    assert notes == [Became.FENCED]


async def test_writes_of_an_adopted_turn_are_taken_without_their_fences(
    postgres_url: str, notes: list[Became], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_check(changed: int, turn: Turn) -> None:
        pass

    monkeypatch.setattr(rules, "_check", no_check)
    unfenced = FINISH.replace("owner = ", "owner <> ").replace("AND epoch = ", "AND epoch > ")
    monkeypatch.setattr(turns, "_FINISH", unfenced)
    async with running_turn(postgres_url) as (store, turn):
        await store.add_round(turn, tool_call())
        assert notes == []
        adopt(postgres_url, turn)
        await store.add_round(turn, tool_call())
        await store.end(turn)
    assert notes == [Became.TAKEN, Became.TAKEN]
