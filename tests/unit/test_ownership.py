"""Ownership: an engine that renews its lease keeps its turns, a dead one loses them, whatever clocks and storage do."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from dialog_engine.chat import ownership as ownership_module
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.chat.ownership import (
    ADOPT_AT_ONCE,
    LEASE_SECONDS,
    MAX_CRASHES,
    RENEW_SECONDS,
    Ownership,
)
from dialog_engine.chat.ports import Adopted, SeenEngine
from dialog_engine.chat.turns import RunningTurns, SessionQueue
from dialog_engine.errors import EngineError, StorageUnavailableError, TurnCrashesError
from dialog_engine.model import ResetReason, Turn
from dialog_engine.observe.metrics import Metrics
from dialog_engine.observe.ownership import ObservedOwnership
from tests.marks import promise
from tests.support.engine_stores import NotedOffers
from tests.support.fakes import FakeEngine, ScriptedModel, breathe, says
from tests.support.fakes.engines import MemoryEngines, SharedTurns, StoredOwner
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000
AWAY = StorageUnavailableError("the database is away")


class Turns(RunningTurns):
    """Remembers its calls, and runs nothing."""

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

    def drop(self, turns: Sequence[Turn]) -> None:
        self.dropped += turns
        for turn in turns:
            self.runs.pop(turn.turn_id)


class Noted(ObservedOwnership):
    """Notes how turns changed their owner, and counts."""

    def __init__(self, notes: list[str], metrics: Metrics) -> None:
        super().__init__(metrics)
        self._notes = notes

    def moved(self, turn: Turn, how: str) -> None:
        super().moved(turn, how)
        self._notes.append(how)


class Engine:
    """One engine, and the clock that it looks by, in seconds."""

    def __init__(self, store: SharedTurns, engine_id: str, turns: RunningTurns | None = None) -> None:
        self.now = 0.0
        self.turns = Turns()
        self.engines = MemoryEngines(store, engine_id)
        relay = NotedOffers()
        self.offered = relay.rows
        self.notes: list[str] = []
        self.metrics = Metrics()
        observer = Noted(self.notes, self.metrics)
        self.ownership = Ownership(
            turns or self.turns, self.engines, relay=relay, observer=observer, clock=lambda: self.now
        )

    def counted(self, name: str, **labels: str) -> float | None:
        """The value of a metric."""
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def store() -> SharedTurns:
    return SharedTurns()


@pytest.fixture
async def a(store: SharedTurns) -> Engine:
    return await started(store, "a")


@pytest.fixture
async def b(store: SharedTurns) -> Engine:
    return await started(store, "b")


async def started(store: SharedTurns, engine_id: str) -> Engine:
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


@promise("no clock of a database or a machine makes an engine seem dead or alive")
async def test_an_engine_that_renews_is_never_adopted_whatever_the_clock_of_the_database_does(
    store: SharedTurns, a: Engine, b: Engine
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


@promise("a reset names its cause")
@promise("no clock of a database or a machine makes an engine seem dead or alive")
@pytest.mark.parametrize("step_ms", [-HOUR_MS, 0, HOUR_MS])
async def test_a_dead_engine_is_adopted_after_its_lease_whatever_the_clock_of_the_database_does(
    store: SharedTurns, a: Engine, b: Engine, step_ms: int
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
    assert (b.turns.runs["t"].epoch, b.turns.runs["t"].resumed) == (2, ResetReason.ADOPTION)
    assert b.notes == ["takeover"]
    assert [row.event_id for row in b.offered] == ["t"]
    assert "a" not in store.leases


async def test_an_engine_that_is_seen_for_the_first_time_has_a_whole_lease(store: SharedTurns, b: Engine) -> None:
    store.leases["a"] = store.now - HOUR_MS
    store.add("a", "t")
    b.now = 1_000_000
    await b.ownership.look()
    assert store.turns["t"].owner == "a"


@promise("an engine that goes down in good order leaves its turns to the others at once")
async def test_an_engine_that_was_shut_down_is_adopted_at_once(store: SharedTurns, a: Engine, b: Engine) -> None:
    turns = [store.add("a", str(n), crashes=MAX_CRASHES) for n in range(2 * ADOPT_AT_ONCE + 3)]
    store.facts["a"] = [OutboxRow(2, "TurnFinished", "fact", b"")]
    await a.ownership.release()

    await b.ownership.look()

    assert len(b.turns.runs) == len(turns)
    assert set(b.turns.failures.values()) == {None}
    assert "fact" in [row.event_id for row in b.offered]
    assert "a" not in store.leases
    assert b.counted("dialog_turns_moved_total", how="takeover") == len(turns)
    assert b.counted("dialog_engines_adopted_total", lease="released") == 1
    assert b.counted("dialog_engines_adopted_total", lease="expired") == 0


async def test_an_engine_that_two_others_find_dead_is_counted_once(
    store: SharedTurns, a: Engine, b: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = await started(store, "c")
    await a.ownership.release()
    adopt = c.engines.adopt

    async def after_b(seen: SeenEngine, limit: int) -> Sequence[Adopted]:
        await b.ownership.look()
        return await adopt(seen, limit)

    monkeypatch.setattr(c.engines, "adopt", after_b)
    await c.ownership.look()

    assert b.counted("dialog_engines_adopted_total", lease="released") == 1
    assert c.counted("dialog_engines_adopted_total", lease="released") == 0


async def test_renewals_of_the_lease_and_engines_are_counted(a: Engine, b: Engine) -> None:
    await b.ownership.renew()
    await b.ownership.look()
    b.engines.error = AWAY
    with pytest.raises(StorageUnavailableError):
        await b.ownership.renew()
    assert b.counted("dialog_engine_lease_renewals_total", outcome="ok") == 1
    assert b.counted("dialog_engine_lease_renewals_total", outcome="failed") == 1
    assert b.counted("dialog_engines") == 2


@promise("no clock of a database or a machine makes an engine seem dead or alive")
@promise("PostgreSQL is killed again and again: nothing accepted is lost, no living engine's turn is taken")
async def test_time_without_the_database_does_not_count(
    store: SharedTurns, a: Engine, b: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add("a", "t")
    async with at_work(b, monkeypatch):
        await rounds(b)
        b.engines.error = AWAY  # no engine can renew now
        await wait_until(lambda: b.engines.refused > 4)
        b.now += LEASE_SECONDS * 2
        b.engines.error = None
        await rounds(b)
        assert store.turns["t"].owner == "a"

        b.now += LEASE_SECONDS
        await wait_until(lambda: store.turns["t"].owner == "b")


async def test_an_unexpected_error_does_not_end_the_loops(
    store: SharedTurns, a: Engine, b: Engine, monkeypatch: pytest.MonkeyPatch
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
async def test_a_start_resumes_the_turns_of_the_last_life(store: SharedTurns, released: bool) -> None:
    store.leases["a"] = 0 if released else store.now
    store.add("a", "t", crashes=2)
    store.add("b", "of another")

    a = await started(store, "a")

    assert [*a.turns.runs] == ["t"]
    assert store.turns["t"].crashes == (0 if released else 3)
    assert a.notes == ["restart"]


@promise("a turn that the store gives to an engine runs there once, whatever happens beside it")
async def test_a_renewal_drops_turns_that_another_engine_owns_and_no_others(store: SharedTurns, a: Engine) -> None:
    lost, kept, again, gone = (store.add("a", turn_id) for turn_id in ("lost", "kept", "again", "gone"))
    for turn in (lost, kept, again, gone):
        a.turns.run(turn)
    store.turns["lost"] = StoredOwner(replace(lost, epoch=2), "b")
    store.turns["again"] = StoredOwner(replace(again, epoch=3), "a")
    del store.turns["gone"]

    await a.ownership.renew()

    assert {turn.turn_id for turn in a.turns.dropped} == {"lost", "again", "gone"}
    assert a.notes.count("lost") == 3
    assert a.turns.runs["kept"].epoch == 1
    assert a.turns.runs["again"].epoch == 4  # it is this engine's, and is taken up anew


@promise("a fenced turn that holds its commit costs the engine no other turn")
async def test_fenced_turns_that_hold_their_commits_do_not_keep_the_lease_from_being_renewed(
    store: SharedTurns, b: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, held = asyncio.Event(), asyncio.Event()
    core = FakeEngine(ScriptedModel([asyncio.Event()], [go, *says("x")], [go, *says("x")]))
    core.store.hold["finish"] = held
    healthy, *fenced = [await core.turns.start("ada", None, "?") for _ in range(3)]
    go.set()
    await wait_until(lambda: core.store.begun.count("finish") == len(fenced))
    store.turns = {turn.turn_id: StoredOwner(replace(turn, epoch=2), "b") for turn in fenced}
    store.turns[healthy.turn_id] = StoredOwner(healthy, "a")
    a = Engine(store, "a", core.turns)

    async with at_work(a, monkeypatch):
        await b.ownership.look()
        await wait_until(lambda: a.notes.count("lost") == len(fenced))
        renewals = a.engines.renewals
        # Half of the lease, in which the commits are still held: MAX_DELAY_SECONDS is as long as the lease.
        await wait_until(lambda: a.engines.renewals > renewals + 2, LEASE_SECONDS / 2, what="renewals meanwhile")
        store.now += 1  # the time of a renewal
        await rounds(a)
        b.now += LEASE_SECONDS
        await b.ownership.look()
    assert store.turns[healthy.turn_id].owner == "a"
    assert a.notes == ["lost", "lost"]
    assert [turn.turn_id for turn in core.turns.running()] == [healthy.turn_id]

    closing = asyncio.create_task(core.turns.close(0))
    await breathe()
    assert not closing.done()  # the turns are awaited here
    held.set()
    await closing


async def test_a_turn_that_ends_during_a_renewal_is_not_dropped(store: SharedTurns, a: Engine) -> None:
    turn = store.add("a", "t")
    a.turns.run(turn)
    a.engines.held = asyncio.Event()
    renewing = asyncio.create_task(a.ownership.renew())
    await wait_until(lambda: a.engines.renewals == 1)
    store.turns["t"].runs = False
    a.engines.held.set()
    await renewing
    assert a.turns.dropped == []


@promise("a turn that the store gives to an engine runs there once, whatever happens beside it")
async def test_a_renewal_resumes_turns_that_do_not_run_and_not_those_that_are_beginning(
    store: SharedTurns, a: Engine
) -> None:
    store.add("a", "committed though the answer was lost")
    store.add("a", "beginning")
    a.turns.beginning.add("beginning")

    await a.ownership.renew()

    assert [*a.turns.runs] == ["committed though the answer was lost"]
    assert a.notes == ["restart"]
    assert store.turns["beginning"].turn.epoch == 1


async def test_stop_requests_of_any_engine_are_executed(store: SharedTurns, a: Engine, b: Engine) -> None:
    store.add("a", "t")
    store.turns["t"].stopped = True
    await a.ownership.look()
    assert a.turns.stopped == ["t"]

    await a.ownership.release()
    await b.ownership.look()
    assert b.turns.stopped == ["t"]


@promise("a turn that its engines die of is given up")
@pytest.mark.parametrize("crashes", [MAX_CRASHES - 2, MAX_CRASHES - 1])
async def test_a_turn_fails_after_too_many_crashes(store: SharedTurns, a: Engine, b: Engine, crashes: int) -> None:
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


@promise("a turn that the store gives to an engine runs there once, whatever happens beside it")
async def test_an_engine_that_shuts_down_adopts_nothing_but_renews_its_lease_and_executes_stops(
    store: SharedTurns, a: Engine, b: Engine
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


@promise("an engine that goes down in good order leaves its turns to the others at once")
async def test_a_released_lease_is_not_renewed(store: SharedTurns, a: Engine) -> None:
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


async def test_a_lease_that_cannot_be_released_expires(store: SharedTurns, a: Engine) -> None:
    a.engines.error = AWAY
    await a.ownership.release()
    a.engines.error = None
    before = store.leases["a"]
    store.now += 1000
    await a.ownership.renew()
    assert store.leases["a"] == before
