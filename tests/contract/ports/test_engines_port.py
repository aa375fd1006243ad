"""The port `Engines`: leases and adoption, in memory and on both databases."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dialog_engine.chat.ports import Engines, SeenEngine
from dialog_engine.model import Turn
from plugins_contract.messages import new_id
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import DIALECTS, LEASE_MS, EngineStore, opener
from tests.support.fakes.engines import MemoryEngines, SharedTurns

pytestmark = pytest.mark.anyio


@dataclass
class Engine:
    """One engine: the port, and how the test begins a turn and requests a stop."""

    engine_id: str
    port: Engines
    begin: Callable[[], Awaitable[Turn]]
    request_stop: Callable[[Turn], Awaitable[None]]

    async def seen(self, other: "Engine") -> SeenEngine:
        """The lease of another engine as it is now."""
        [seen] = [each for each in await self.port.others() if each.engine_id == other.engine_id]
        return seen


def in_memory(store: SharedTurns, engine_id: str) -> Engine:
    async def begin_turn() -> Turn:
        return store.add(engine_id, new_id())

    async def request_stop(turn: Turn) -> None:
        store.turns[turn.turn_id].stopped = True

    return Engine(engine_id, MemoryEngines(store, engine_id), begin_turn, request_stop)


def in_database(store: EngineStore) -> Engine:
    async def request_stop(turn: Turn) -> None:
        await store.turns.request_stop(turn.turn_id)

    return Engine(store.engine_id, store.engines, lambda: begin(store.turns, "ada", None, "Hi"), request_stop)


@pytest.fixture(params=["memory", *DIALECTS])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[tuple[Engine, Engine]]:
    """Two engines that share a store."""
    if request.param == "memory":
        store = SharedTurns()
        a, b = in_memory(store, "a"), in_memory(store, "b")
        await register(a, b)
        yield a, b
        return
    async with opener(request.param, tmp_path / "engine.sqlite3", request)() as database:
        a, b = in_database(EngineStore(database, "a")), in_database(EngineStore(database, "b"))
        await register(a, b)
        yield a, b


async def register(*engines: Engine) -> None:
    for engine in engines:
        await engine.port.register(LEASE_MS)


async def test_a_released_lease_is_seen_by_others_and_by_the_next_start(pair: tuple[Engine, Engine]) -> None:
    a, b = pair
    assert not (await b.seen(a)).released
    await a.port.release()
    assert (await b.seen(a)).released
    assert await a.port.register(LEASE_MS)
    assert not await a.port.register(LEASE_MS)


async def test_a_renewal_returns_the_running_turns_of_the_engine(pair: tuple[Engine, Engine]) -> None:
    a, b = pair
    turn = await a.begin()
    await b.begin()
    [owned] = await a.port.renew(LEASE_MS, ())
    assert (owned.turn_id, owned.epoch, owned.stop_requested) == (turn.turn_id, 1, False)


async def test_a_stop_request_is_found_by_the_owner_only(pair: tuple[Engine, Engine]) -> None:
    a, b = pair
    turn = await a.begin()
    assert await a.port.stop_requests() == []
    await a.request_stop(turn)
    assert await a.port.stop_requests() == [turn.turn_id]
    assert await b.port.stop_requests() == []


async def test_turns_are_adopted_only_while_the_lease_is_as_it_was_seen(pair: tuple[Engine, Engine]) -> None:
    a, b = pair
    turns = {(await a.begin()).turn_id for _ in range(3)}
    seen = await b.seen(a)
    first = await b.port.adopt(seen, 2)
    assert len(first) == 2
    assert {(each.turn.epoch, each.crashes) for each in first} == {(2, 1)}
    await a.port.release()
    assert await b.port.adopt(seen, 2) == []
    [last] = await b.port.adopt(await b.seen(a), 2)
    assert last.crashes == 0, "an orderly shutdown is no crash"
    assert {each.turn.turn_id for each in (*first, last)} == turns


async def test_an_adopted_turn_is_fenced_for_its_former_owner(pair: tuple[Engine, Engine]) -> None:
    a, b = pair
    turn = await a.begin()
    assert await a.port.fenced([turn]) == []
    [adopted] = await b.port.adopt(await b.seen(a), 1)
    assert await a.port.fenced([turn]) == [turn.turn_id]
    assert await b.port.fenced([adopted.turn]) == []


async def test_an_engine_adopts_its_own_turns_all_or_by_name_or_none(pair: tuple[Engine, Engine]) -> None:
    a, b = pair
    one, two, _ = await a.begin(), await a.begin(), await b.begin()
    assert await a.port.adopt_own([]) == []
    [adopted] = await a.port.adopt_own([two.turn_id])
    assert (adopted.turn.turn_id, adopted.turn.epoch) == (two.turn_id, 2)
    everything = await a.port.adopt_own(None)
    assert {each.turn.turn_id: each.turn.epoch for each in everything} == {one.turn_id: 2, two.turn_id: 3}


async def test_an_engine_is_removed_only_without_running_turns(pair: tuple[Engine, Engine]) -> None:
    a, b = pair
    await a.begin()
    seen = await b.seen(a)
    await b.port.remove(seen)
    assert await b.seen(a) == seen
    await b.port.adopt(seen, 1)
    await b.port.remove(seen)
    assert await b.port.others() == []


@promise("a turn of a dead engine is adopted by exactly one other")
async def test_a_turn_that_a_removed_engine_began_is_adopted(pair: tuple[Engine, Engine]) -> None:
    a, b = pair
    await b.port.remove(await b.seen(a))
    turn = await a.begin()
    [adopted] = await b.port.adopt(await b.seen(a), 1)
    assert adopted.turn.turn_id == turn.turn_id
