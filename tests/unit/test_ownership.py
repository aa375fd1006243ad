"""Ownership: an engine that renews its lease keeps its turns, a dead one loses them, whatever clocks and storage do."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dialog_engine.chat.ownership import MAX_CRASHES, Ownership, OwnershipTimes
from dialog_engine.chat.ports import Unseen
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import EngineError, StorageUnavailableError, TurnCrashesError
from dialog_engine.model import ResetReason, Turn
from dialog_engine.observe.metrics import Metrics
from dialog_engine.observe.ownership import ObservedOwnership
from dialog_engine.storage.database import Row
from tests.marks import promise
from tests.support.engine_stores import NotedOffers
from tests.support.fakes.engine import FakeEngine, breathe
from tests.support.fakes.models import ScriptedModel, says
from tests.support.fakes.stores import MemoryDatabase, MemoryStore
from tests.support.waiting import wait_until

HOUR_MS = 3_600_000
TIMES = OwnershipTimes(renew=0.0, look=0.0)
"""The loops of an engine go round all the time."""
LEASE_SECONDS = TIMES.lease
AWAY = StorageUnavailableError("the database is away")


class Turns(RunningTurns):
    """Remembers its calls, and runs nothing."""

    def __init__(self) -> None:
        self.runs: dict[str, Turn] = {}
        self.beginning: set[str] = set()
        self.failures: dict[str, EngineError | None] = {}
        self.stopped: list[str] = []
        self.dropped: list[Turn] = []

    def running(self) -> list[Turn]:
        return [*self.runs.values()]

    def knows(self, turn_id: str) -> bool:
        return turn_id in self.runs or turn_id in self.beginning

    def run(
        self, turn: Turn, *, stopped: bool = False, failure: EngineError | None = None, unseen: Unseen = None
    ) -> None:
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

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics)
        self.notes: list[str] = []
        self.looks = 0

    def moved(self, turn: Turn, how: str) -> None:
        super().moved(turn, how)
        self.notes.append(how)

    def counted(self, engines: int) -> None:
        super().counted(engines)
        self.looks += 1


class SharedTurns:
    """The database that the engines of a test share."""

    def __init__(self) -> None:
        self.database = MemoryDatabase()
        self.sql = self.database.rows
        self.clock = self.database.clock

    def add(self, owner: str, turn_id: str) -> Turn:
        """Begin a turn at that engine, with a row in the outbox."""
        turn = Turn(turn_id, f"session of {turn_id}", "ada")
        self.sql(
            "INSERT INTO sessions (session_id, subject, created_at, updated_at) VALUES (?, 'ada', 0, 0)",
            turn.session_id,
        )
        self.sql(
            "INSERT INTO turns (turn_id, session_id, status, owner, owned_since, created_at)"
            " VALUES (?, ?, 'running', ?, ?, 0)",
            *(turn_id, turn.session_id, owner, self.clock.now_ms()),
        )
        self.sql(
            "INSERT INTO outbox (owner, turn_id, event_type, event_id, payload, created_at)"
            " VALUES (?, ?, 'TurnFinished', ?, x'', 0)",
            *(owner, turn_id, turn_id),
        )
        return turn

    def change(self, turn_id: str, column: str, value: Any) -> None:
        self.sql(f"UPDATE turns SET {column} = ? WHERE turn_id = ?", value, turn_id)  # noqa: S608 -- our own words

    def turn(self, turn_id: str) -> Row:
        [row] = self.sql("SELECT owner, epoch, crashes FROM turns WHERE turn_id = ?", turn_id)
        return row

    def lease(self, engine_id: str) -> int | None:
        found = self.sql("SELECT lease_until FROM engines WHERE engine_id = ?", engine_id)
        return found[0].lease_until if found else None


class Engine:
    """One engine, and the clock that it looks by, in seconds."""

    def __init__(self, store: SharedTurns, engine_id: str, turns: RunningTurns | None = None) -> None:
        self.now = 0.0
        self.turns = Turns()
        self.store = MemoryStore(engine_id, store.database)
        self.engines = self.store.engines
        relay = NotedOffers()
        self.offered = relay.rows
        self.metrics = Metrics()
        self.observer = Noted(self.metrics)
        self.notes = self.observer.notes
        self.ownership = Ownership(
            turns or self.turns, self.engines, relay=relay, observer=self.observer, clock=lambda: self.now, times=TIMES
        )

    @property
    def renewals(self) -> int:
        return self.store.begun.count("renew")

    def counted(self, name: str, **labels: str) -> float | None:
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
async def at_work(engine: Engine) -> AsyncGenerator[None]:
    """The loops of an engine run."""
    task = asyncio.create_task(engine.ownership.run())
    try:
        yield
    finally:
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])


async def rounds(engine: Engine) -> None:
    """Both loops have gone round since."""
    looks, renewals = engine.observer.looks, engine.renewals
    await wait_until(lambda: engine.observer.looks > looks + 2 and engine.renewals > renewals + 2)


# --- Dead or alive ---


@promise("no clock of a database or a machine makes an engine seem dead or alive")
async def test_an_engine_that_renews_is_never_adopted_whatever_the_clock_of_the_database_does(
    store: SharedTurns, a: Engine, b: Engine
) -> None:
    random.seed(1)
    store.add("a", "t")
    for _ in range(300):
        store.clock.ahead_ms += random.choice([-HOUR_MS, 0, 0, HOUR_MS]) + 2500
        b.now += OwnershipTimes().renew
        if random.random() < 0.5:
            store.clock.ahead_ms += random.choice([-HOUR_MS, HOUR_MS])
        await a.ownership.renew()
        await b.ownership.look()
    assert store.turn("t").owner == "a"
    assert b.notes == []


@promise("a reset names its cause")
@promise("no clock of a database or a machine makes an engine seem dead or alive")
@pytest.mark.parametrize("step_ms", [-HOUR_MS, 0, HOUR_MS])
async def test_a_dead_engine_is_adopted_after_its_lease_whatever_the_clock_of_the_database_does(
    store: SharedTurns, a: Engine, b: Engine, step_ms: int
) -> None:
    store.add("a", "t")
    await b.ownership.look()
    store.clock.ahead_ms += step_ms
    b.now += LEASE_SECONDS - 0.1
    await b.ownership.look()
    assert store.turn("t").owner == "a"

    store.clock.ahead_ms += step_ms
    b.now += 0.2
    await b.ownership.look()
    assert store.turn("t").owner == "b"
    assert (b.turns.runs["t"].epoch, b.turns.runs["t"].resumed) == (2, ResetReason.ADOPTION)
    assert b.notes == ["takeover"]
    assert b.counted("dialog_engines_adopted_total", lease="expired") == 1
    assert [row.event_id for row in b.offered] == ["t"]
    assert store.lease("a") is None


async def test_an_engine_that_is_seen_for_the_first_time_has_a_whole_lease(store: SharedTurns, b: Engine) -> None:
    store.sql("INSERT INTO engines VALUES ('a', ?, '', 0)", store.clock.now_ms() - HOUR_MS)
    store.add("a", "t")
    b.now = 1_000_000
    await b.ownership.look()
    assert store.turn("t").owner == "a"


@promise("no clock of a database or a machine makes an engine seem dead or alive")
@promise("PostgreSQL is killed again and again: nothing accepted is lost, no living engine's turn is taken")
async def test_time_without_the_database_does_not_count(store: SharedTurns, a: Engine, b: Engine) -> None:
    store.add("a", "t")
    async with at_work(b):
        await rounds(b)
        b.store.held.away = AWAY  # no engine can renew now
        await wait_until(lambda: b.store.held.refused > 4)
        b.now += LEASE_SECONDS * 2
        b.store.held.away = None
        await rounds(b)
        assert store.turn("t").owner == "a"

        b.now += LEASE_SECONDS
        await wait_until(lambda: store.turn("t").owner == "b")


async def test_an_unexpected_error_does_not_end_the_loops(store: SharedTurns, a: Engine, b: Engine) -> None:
    store.add("a", "t")
    async with at_work(b):
        b.store.held.away = LookupError("a bug")
        await wait_until(lambda: b.store.held.refused > 4)
        b.store.held.away = None
        await rounds(b)
        b.now += LEASE_SECONDS
        await wait_until(lambda: store.turn("t").owner == "b")


# --- What runs here ---


@promise("a turn that the store gives to an engine runs there once, whatever happens beside it")
async def test_a_renewal_drops_turns_that_another_engine_owns_and_no_others(store: SharedTurns, a: Engine) -> None:
    lost, kept, again, gone = (store.add("a", turn_id) for turn_id in ("lost", "kept", "again", "gone"))
    for turn in (lost, kept, again, gone):
        a.turns.run(turn)
    store.change("lost", "owner", "b")
    store.change("lost", "epoch", 2)
    store.change("again", "epoch", 3)
    store.sql("DELETE FROM turns WHERE turn_id = 'gone'")

    await a.ownership.renew()

    assert {turn.turn_id for turn in a.turns.dropped} == {"lost", "again", "gone"}
    assert a.notes.count("lost") == 3
    assert a.turns.runs["kept"].epoch == 1
    assert a.turns.runs["again"].epoch == 4  # it is this engine's, and is taken up anew


@promise("a fenced turn that holds its commit costs the engine no other turn")
async def test_fenced_turns_that_hold_their_commits_do_not_keep_the_lease_from_being_renewed(
    store: SharedTurns, b: Engine
) -> None:
    go, held = asyncio.Event(), asyncio.Event()
    model = ScriptedModel([asyncio.Event()], [go, *says("x")], [go, *says("x")])
    core = FakeEngine(model, store=MemoryStore("a", store.database))
    core.store.hold["finish"] = held
    healthy, *fenced = [await core.turns.start("ada", None, "?") for _ in range(3)]
    go.set()
    await wait_until(lambda: core.store.begun.count("finish") == len(fenced))
    for turn in fenced:
        store.change(turn.turn_id, "owner", "b")
    a = Engine(store, "a", core.turns)

    async with at_work(a):
        await b.ownership.look()
        await wait_until(lambda: a.notes.count("lost") == len(fenced))
        renewals = a.renewals
        # Half of the lease, in which the commits are still held: MAX_DELAY_SECONDS is as long as the lease.
        await wait_until(lambda: a.renewals > renewals + 2, LEASE_SECONDS / 2, what="renewals meanwhile")
        store.clock.ahead_ms += 1  # the time of a renewal
        await rounds(a)
        b.now += LEASE_SECONDS
        await b.ownership.look()
    assert store.turn(healthy.turn_id).owner == "a"
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
    held = a.store.hold["renew"] = asyncio.Event()
    renewing = asyncio.create_task(a.ownership.renew())
    await wait_until(lambda: a.renewals == 1)
    store.change("t", "status", "done")
    held.set()
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
    assert store.turn("beginning").epoch == 1


async def test_stop_requests_of_any_engine_are_executed(store: SharedTurns, a: Engine, b: Engine) -> None:
    store.add("a", "t")
    store.change("t", "stop_requested", 1)
    await a.ownership.look()
    assert a.turns.stopped == ["t"]

    await a.ownership.release()
    await b.ownership.look()
    assert b.turns.stopped == ["t"]


@promise("a turn that its engines die of is given up")
@pytest.mark.parametrize("crashes", [MAX_CRASHES - 2, MAX_CRASHES - 1])
async def test_a_turn_fails_after_too_many_crashes(store: SharedTurns, a: Engine, b: Engine, crashes: int) -> None:
    store.add("a", "t")
    store.change("t", "crashes", crashes)
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
    store.change("lost", "owner", "a")
    store.change("mine", "stop_requested", 1)
    before = store.lease("b") or 0
    store.clock.ahead_ms += 1

    await b.ownership.look()
    await b.ownership.renew()

    assert {*b.turns.runs} == {"mine"}
    assert b.turns.stopped == ["mine"]
    assert (store.lease("b") or 0) > before
    assert store.lease("a")


@promise("an engine that goes down in good order leaves its turns to the others at once")
async def test_a_released_lease_is_not_renewed(store: SharedTurns, a: Engine) -> None:
    held = a.store.hold["renew"] = asyncio.Event()
    renewing = asyncio.create_task(a.ownership.renew())
    await wait_until(lambda: a.renewals == 1)
    releasing = asyncio.create_task(a.ownership.release())
    await asyncio.sleep(0)
    held.set()
    await asyncio.gather(renewing, releasing)
    assert store.lease("a") == 0

    await a.ownership.renew()
    assert store.lease("a") == 0


async def test_a_lease_that_cannot_be_released_expires(store: SharedTurns, a: Engine) -> None:
    a.store.held.away = AWAY
    await a.ownership.release()
    a.store.held.away = None
    before = store.lease("a")
    store.clock.ahead_ms += 1000
    await a.ownership.renew()
    assert store.lease("a") == before
