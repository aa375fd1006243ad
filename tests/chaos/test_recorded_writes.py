"""What is noted of writes: a refused write, and one that was taken although its turn was adopted."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing

import psycopg
import pytest

from dialog_engine.model import Turn
from dialog_engine.storage import fence as rules
from dialog_engine.storage import turns
from dialog_engine.storage.postgres import open_postgres
from dialog_engine.storage.turns import SqlTurns
from tests.chaos.notes import What
from tests.chaos.recorded_writes import watch_writes
from tests.support.beginnings import begin
from tests.support.engine_stores import EngineStore, tool_call

pytestmark = pytest.mark.anyio

FINISH = turns._FINISH  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[What]:
    """What becomes of each write of this process from now on."""
    for owner, name in ((rules, "_fence"), (SqlTurns, "finish"), (SqlTurns, "_fact")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back at the end
    notes: list[What] = []
    watch_writes(lambda what, turn, epoch: notes.append(what))
    return notes


@asynccontextmanager
async def running_turn(url: str) -> AsyncGenerator[tuple[EngineStore, Turn]]:
    async with open_postgres(url, 1) as database:
        store = EngineStore(database)
        yield store, await begin(store.turns, "ann", None, "Hi")


def adopt(url: str, turn: Turn) -> None:
    """Another engine becomes its owner. Waits for a transaction that has written the turn."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("UPDATE turns SET owner = 'another', epoch = epoch + 1 WHERE turn_id = %s", [turn.turn_id])


async def test_writes_of_an_adopted_turn_are_taken_without_their_fences(
    postgres_url: str, notes: list[What], monkeypatch: pytest.MonkeyPatch
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
    assert notes == [What.TAKEN, What.TAKEN]
