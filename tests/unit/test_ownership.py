"""Ownership: an engine that renews its lease keeps its turns, a dead one loses them, whatever clocks and storage do."""

import asyncio
import random
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from dialog_engine.chat import ownership as ownership_module
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.chat.ownership import ADOPT_AT_ONCE, LEASE_SECONDS, MAX_CRASHES, RENEW_SECONDS, Ownership
from dialog_engine.chat.ports import Adopted, Engines, OwnedTurn, SeenEngine
from dialog_engine.chat.turns import RunningTurns, SessionQueue
from dialog_engine.errors import EngineError, StorageUnavailableError, TurnCrashesError
from dialog_engine.model import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000
AWAY = StorageUnavailableError("the database is away")


@dataclass
class Stored:
    """A running turn as it is stored."""

    turn: Turn
    owner: str
    crashes: int = 0
    stopped: bool = False
    runs: bool = True


@dataclass
class Store:
    """What engines share. `now` is the clock of the database, in milliseconds."""

    now: int = 1_000_000
    leases: dict[str, int] = field(default_factory=dict[str, int])
    turns: dict[str, Stored] = field(default_factory=dict[str, Stored])
    facts: dict[str, list[OutboxRow]] = field(default_factory=dict[str, list[OutboxRow]])

    def add(self, owner: str, turn_id: str, *, crashes: int = 0) -> Turn:
        """A turn of that owner runs."""
        turn = Turn(turn_id, f"session of {turn_id}", "ada")
        self.turns[turn_id] = Stored(turn, owner, crashes)
        return turn

    def of(self, owner: str) -> list[Stored]:
        """The running turns of an engine."""
        return [stored for stored in self.turns.values() if stored.owner == owner and stored.runs]


class MemoryEngines(Engines):
    """The leases as one engine sees them. While `error` is set nothing can be done."""

    def __init__(self, store: Store, engine_id: str) -> None:
        self.store = store
        self.engine_id = engine_id
        self.error: Exception | None = None
        self.refused = 0
        self.looks = 0
        self.renewals = 0
        self.held: asyncio.Event | None = None

    def _use(self) -> Store:
        if self.error is not None:
            self.refused += 1
            raise self.error
        return self.store

    async def register(self, lease_ms: int) -> bool:
        store = self._use()
        before = store.leases.get(self.engine_id)
        store.leases[self.engine_id] = store.now + lease_ms
        return before == 0

    async def renew(self, lease_ms: int, waiting: Collection[str]) -> Sequence[OwnedTurn]:
        store = self._use()
        self.renewals += 1
        if self.held:
            await self.held.wait()
        store.leases[self.engine_id] = store.now + lease_ms
        return [OwnedTurn(s.turn.turn_id, s.turn.epoch, s.stopped) for s in store.of(self.engine_id)]

    async def stop_requests(self) -> Sequence[str]:
        return [stored.turn.turn_id for stored in self._use().of(self.engine_id) if stored.stopped]

    async def fenced(self, turns: Sequence[Turn]) -> Sequence[str]:
        found = self._use().turns
        return [
            turn.turn_id
            for turn in turns
            if turn.turn_id not in found
            or (found[turn.turn_id].owner, found[turn.turn_id].turn.epoch) != (self.engine_id, turn.epoch)
        ]

    async def others(self) -> Sequence[SeenEngine]:
        leases = self._use().leases.items()
        self.looks += 1
        return [SeenEngine(engine_id, lease) for engine_id, lease in leases if engine_id != self.engine_id]

    async def adopt(self, seen: SeenEngine, limit: int) -> Sequence[Adopted]:
        if self._use().leases.get(seen.engine_id) != seen.lease_until:
            return []
        return [self._adopted(stored, seen.released) for stored in self.store.of(seen.engine_id)[:limit]]

    async def adopt_own(self, turn_ids: Sequence[str] | None, *, released: bool = False) -> Sequence[Adopted]:
        own = self._use().of(self.engine_id)
        return [self._adopted(each, released) for each in own if turn_ids is None or each.turn.turn_id in turn_ids]

    async def remove(self, seen: SeenEngine) -> Sequence[OutboxRow]:
        if self._use().leases.get(seen.engine_id) != seen.lease_until or self.store.of(seen.engine_id):
            return []
        del self.store.leases[seen.engine_id]
        return self.store.facts.pop(seen.engine_id, [])

    async def release(self) -> None:
        self._use().leases[self.engine_id] = 0

    def _adopted(self, stored: Stored, released: bool) -> Adopted:
        stored.turn = replace(stored.turn, epoch=stored.turn.epoch + 1)
        stored.owner = self.engine_id
        stored.crashes = 0 if released else stored.crashes + 1
        rows = [OutboxRow(1, "ToolCallRequested", stored.turn.turn_id, b"")]
        return Adopted(stored.turn, stored.stopped, stored.crashes, rows)


class Turns(RunningTurns):
    """Remembers what it is told, and runs nothing."""

    def __init__(self) -> None:
        self.queue = SessionQueue()
        self.runs: dict[str, Turn] = {}
        self.beginning: set[str] = set()
        self.failures: dict[str, EngineError | None] = {}
        self.stopped: list[str] = []
        self.dropped: list[Turn] = []

    def running(self) -> list[Turn]:
        return [*self.runs.values()]

    def knows(self, turn_id: str) -> bool:
        return turn_id in self.runs or turn_id in self.beginning

    def run(self, turn: Turn, *, stopped: bool = False, failure: EngineError | None = None) -> None:
        self.runs[turn.turn_id] = turn
        self.failures[turn.turn_id] = failure
        if stopped:
            self.stop(turn.turn_id)

    def stop(self, turn_id: str) -> None:
        self.stopped.append(turn_id)

    async def drop(self, turn: Turn) -> None:
        self.dropped.append(turn)
        self.runs.pop(turn.turn_id)


class Engine:
    """One engine, and the clock that it looks by, in seconds."""

    def __init__(self, store: Store, engine_id: str) -> None:
        self.now = 0.0
        self.turns = Turns()
        self.engines = MemoryEngines(store, engine_id)
        self.offered: list[OutboxRow] = []
        self.notes: list[str] = []
        self.ownership = Ownership(
            self.turns, self.engines, offer=self.offered.extend, note=self.notes.append, clock=lambda: self.now
        )


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def a(store: Store) -> Engine:
    return await started(store, "a")


@pytest.fixture
async def b(store: Store) -> Engine:
    return await started(store, "b")


async def started(store: Store, engine_id: str) -> Engine:
    engine = Engine(store, engine_id)
    await engine.ownership.start()
    return engine


@asynccontextmanager
async def at_work(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    """The loops of an engine, that go round all the time."""
    monkeypatch.setattr(ownership_module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(ownership_module, "RENEW_SECONDS", 0.0)
    task = asyncio.create_task(engine.ownership.run())
    try:
        yield
    finally:
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])


async def rounds(engine: Engine) -> None:
    """Both loops have gone round since."""
    looks, renewals = engine.engines.looks, engine.engines.renewals
    await wait_until(lambda: engine.engines.looks > looks + 2 and engine.engines.renewals > renewals + 2)


# --- Dead or alive ---


async def test_an_engine_that_renews_is_never_adopted_whatever_is_done_to_the_clock_of_the_database(
    store: Store, a: Engine, b: Engine
) -> None:
    random.seed(1)
    store.add("a", "t")
    for _ in range(300):
        store.now += random.choice([-HOUR_MS, 0, 0, HOUR_MS]) + 2500
        b.now += RENEW_SECONDS
        if random.random() < 0.5:
            store.now += random.choice([-HOUR_MS, HOUR_MS])
        await a.ownership.renew()
        await b.ownership.look()
    assert store.turns["t"].owner == "a"
    assert b.notes == []


@pytest.mark.parametrize("step_ms", [-HOUR_MS, 0, HOUR_MS])
async def test_a_dead_engine_is_adopted_after_its_lease_whatever_is_done_to_the_clock_of_the_database(
    store: Store, a: Engine, b: Engine, step_ms: int
) -> None:
    store.add("a", "t")
    await b.ownership.look()
    store.now += step_ms
    b.now += LEASE_SECONDS - 0.1
    await b.ownership.look()
    assert store.turns["t"].owner == "a"

    store.now += step_ms
    b.now += 0.2
    await b.ownership.look()
    assert store.turns["t"].owner == "b"
    assert b.turns.runs["t"].epoch == 2
    assert b.notes == ["takeover"]
    assert [row.event_id for row in b.offered] == ["t"]
    assert "a" not in store.leases


async def test_an_engine_that_is_seen_for_the_first_time_is_given_a_whole_lease(store: Store, b: Engine) -> None:
    store.leases["a"] = store.now - HOUR_MS
    store.add("a", "t")
    b.now = 1_000_000
    await b.ownership.look()
    assert store.turns["t"].owner == "a"


async def test_an_engine_that_went_down_in_good_order_is_adopted_at_once_with_all_it_left(
    store: Store, a: Engine, b: Engine
) -> None:
    turns = [store.add("a", str(n), crashes=MAX_CRASHES) for n in range(2 * ADOPT_AT_ONCE + 3)]
    store.facts["a"] = [OutboxRow(2, "TurnFinished", "fact", b"")]
    await a.ownership.release()

    await b.ownership.look()

    assert len(b.turns.runs) == len(turns)
    assert set(b.turns.failures.values()) == {None}
    assert "fact" in [row.event_id for row in b.offered]
    assert "a" not in store.leases


async def test_time_in_which_the_database_was_away_does_not_count(
    store: Store, a: Engine, b: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add("a", "t")
    async with at_work(b, monkeypatch):
        await rounds(b)
        b.engines.error = AWAY  # nobody can renew now
        await wait_until(lambda: b.engines.refused > 4)
        b.now += LEASE_SECONDS * 2
        b.engines.error = None
        await rounds(b)
        assert store.turns["t"].owner == "a"

        b.now += LEASE_SECONDS
        await wait_until(lambda: store.turns["t"].owner == "b")


async def test_a_step_that_fails_for_another_reason_ends_no_loop(
    store: Store, a: Engine, b: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add("a", "t")
    async with at_work(b, monkeypatch):
        b.engines.error = LookupError("a bug")
        await wait_until(lambda: b.engines.refused > 4)
        b.engines.error = None
        await rounds(b)
        b.now += LEASE_SECONDS
        await wait_until(lambda: store.turns["t"].owner == "b")


# --- What runs here ---


@pytest.mark.parametrize("released", [False, True])
async def test_a_start_goes_on_with_what_the_last_life_left(store: Store, released: bool) -> None:
    store.leases["a"] = 0 if released else store.now
    store.add("a", "t", crashes=2)
    store.add("b", "of another")

    a = await started(store, "a")

    assert [*a.turns.runs] == ["t"]
    assert store.turns["t"].crashes == (0 if released else 3)
    assert a.notes == ["restart"]


async def test_a_turn_that_another_engine_has_by_now_is_dropped_and_one_that_is_still_ours_is_not(
    store: Store, a: Engine
) -> None:
    lost, kept, again, gone = (store.add("a", turn_id) for turn_id in ("lost", "kept", "again", "gone"))
    for turn in (lost, kept, again, gone):
        a.turns.run(turn)
    store.turns["lost"] = Stored(replace(lost, epoch=2), "b")
    store.turns["again"] = Stored(replace(again, epoch=3), "a")
    del store.turns["gone"]

    await a.ownership.renew()

    assert {turn.turn_id for turn in a.turns.dropped} == {"lost", "again", "gone"}
    assert a.notes.count("lost") == 3
    assert a.turns.runs["kept"].epoch == 1
    assert a.turns.runs["again"].epoch == 4  # it is this engine's, and is taken up anew


async def test_a_turn_that_ends_during_a_renewal_is_not_dropped(store: Store, a: Engine) -> None:
    turn = store.add("a", "t")
    a.turns.run(turn)
    a.engines.held = asyncio.Event()
    renewing = asyncio.create_task(a.ownership.renew())
    await wait_until(lambda: a.engines.renewals == 1)
    store.turns["t"].runs = False
    a.engines.held.set()
    await renewing
    assert a.turns.dropped == []


async def test_a_turn_of_this_engine_that_does_not_run_is_taken_up_and_one_that_is_just_beginning_is_not(
    store: Store, a: Engine
) -> None:
    store.add("a", "committed though the answer was lost")
    store.add("a", "beginning")
    a.turns.beginning.add("beginning")

    await a.ownership.renew()

    assert [*a.turns.runs] == ["committed though the answer was lost"]
    assert a.notes == ["restart"]
    assert store.turns["beginning"].turn.epoch == 1


async def test_stops_that_were_requested_anywhere_are_done(store: Store, a: Engine, b: Engine) -> None:
    store.add("a", "t")
    store.turns["t"].stopped = True
    await a.ownership.look()
    assert a.turns.stopped == ["t"]

    await a.ownership.release()
    await b.ownership.look()
    assert b.turns.stopped == ["t"]


@pytest.mark.parametrize("crashes", [MAX_CRASHES - 2, MAX_CRASHES - 1])
async def test_a_turn_that_may_be_what_engines_die_of_is_ended(
    store: Store, a: Engine, b: Engine, crashes: int
) -> None:
    store.add("a", "t", crashes=crashes)
    await b.ownership.look()
    b.now += LEASE_SECONDS
    await b.ownership.look()

    failure = b.turns.failures["t"]
    if crashes + 1 < MAX_CRASHES:
        assert failure is None
    else:
        assert isinstance(failure, TurnCrashesError)
        assert str(failure).startswith(f"{MAX_CRASHES} times in a row")


# --- Going down ---


async def test_an_engine_that_goes_down_takes_nothing_up_but_keeps_its_lease_and_hears_of_stops(
    store: Store, a: Engine, b: Engine
) -> None:
    store.add("a", "of a dead engine")
    mine = store.add("b", "mine")
    b.turns.run(mine)
    store.add("b", "not run")
    await b.ownership.look()
    b.now += LEASE_SECONDS
    b.ownership.retire()
    lost = store.add("b", "lost")
    b.turns.run(lost)
    store.turns["lost"].owner = "a"
    store.turns["mine"].stopped = True
    store.now += 1

    await b.ownership.look()
    await b.ownership.renew()

    assert {*b.turns.runs} == {"mine"}
    assert b.turns.stopped == ["mine"]
    assert store.leases["b"] == store.now + LEASE_SECONDS * 1000
    assert store.leases["a"]


async def test_a_lease_that_was_given_up_is_not_taken_again(store: Store, a: Engine) -> None:
    a.engines.held = asyncio.Event()
    renewing = asyncio.create_task(a.ownership.renew())
    await wait_until(lambda: a.engines.renewals == 1)
    releasing = asyncio.create_task(a.ownership.release())
    await asyncio.sleep(0)
    a.engines.held.set()
    await asyncio.gather(renewing, releasing)
    assert store.leases["a"] == 0

    await a.ownership.renew()
    assert store.leases["a"] == 0


async def test_a_lease_that_cannot_be_given_up_runs_out(store: Store, a: Engine) -> None:
    a.engines.error = AWAY
    await a.ownership.release()
    a.engines.error = None
    before = store.leases["a"]
    store.now += 1000
    await a.ownership.renew()
    assert store.leases["a"] == before
