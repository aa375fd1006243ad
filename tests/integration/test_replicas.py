"""Two engines on one database, behind any load balancer: whichever is asked, the answer is the same."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from redis import Redis as SyncRedis

from dialog_engine.model import AssistantMessage, ToolCall, Turn
from dialog_engine.peers.control import ControlPublisher
from dialog_engine.storage.database import Transaction
from dialog_engine.storage.postgres import PostgresDatabase, open_postgres
from dialog_engine.wiring.times import EngineTimes
from plugins_contract.keys import Keys
from plugins_contract.messages import new_id
from tests.integration.engines import SHORT_LEASES, Engine, Model, running_engine, settings
from tests.marks import promise
from tests.support.engine_stores import EngineStore
from tests.support.fakes.worker import FakeWorker, tool
from tests.support.postgres import PostgresServer
from tests.support.servers import LocalServer
from tests.support.store import Store
from tests.support.waiting import wait_until

KEYS = Keys()
"""For tests that have to wait for the end of one."""


class Place:
    """Where engines find Redis, their database and the model."""

    def __init__(
        self, folder: Path, redis_url: str, database_url: str, model: Model, times: EngineTimes = EngineTimes()
    ) -> None:
        self._times = times
        self.redis_url = redis_url
        self.database_url = database_url
        self.store = Store(database_url)
        self.model = model
        self._at = (folder, redis_url, model.url)

    @asynccontextmanager
    async def engine(self, **changes: Any) -> AsyncGenerator[Engine]:
        configured = settings(*self._at, database_url=self.database_url, **changes)
        async with running_engine(configured, times=self._times) as engine:
            yield engine

    @asynccontextmanager
    async def engines(self, count: int = 2, **changes: Any) -> AsyncGenerator[list[Engine]]:
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self.engine(**changes)) for _ in range(count)]

    @asynccontextmanager
    async def database(self) -> AsyncGenerator[PostgresDatabase]:
        async with open_postgres(self.database_url, 2) as database:
            yield database


@pytest.fixture
async def place(
    tmp_path: Path, redis_url: str, postgres_url: str, model: Model, times: EngineTimes
) -> AsyncGenerator[Place]:
    place = Place(tmp_path, redis_url, postgres_url, model, times)
    yield place
    place.store.close()


@pytest.fixture
async def engines(place: Place) -> AsyncGenerator[tuple[Engine, Engine]]:
    async with place.engines() as (here, there):
        yield here, there


async def said(engine: Engine, session_id: str) -> list[str]:
    """What was said in a session, as an engine tells it."""
    answer = await engine.client.get(f"/v1/sessions/{session_id}/messages")
    assert answer.status_code == 200, answer.text
    return [message["content"] for message in answer.json()["messages"]]


async def status(engine: Engine, turn_id: str) -> str:
    return (await engine.client.get(f"/v1/turns/{turn_id}")).json()["status"]


async def listed(engine: Engine) -> list[dict[str, Any]]:
    return (await engine.client.get("/v1/sessions")).json()["sessions"]


def session_of(events: list[Any]) -> str:
    return events[0].data["sessionId"]


# --- Sessions ---


@promise("any engine serves the next turn of a session, and knows all that was said and deleted")
async def test_a_session_is_continued_listed_read_and_deleted_at_any_engine(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    for reply in ("One.", "Two.", "Three."):
        model.will_say(reply)
    first = await here.chat("first")
    session_id, turn_id = session_of(first), first[0].data["turnId"]
    await there.chat("second", sessionId=session_id)
    await here.chat("third", sessionId=session_id)

    everything = ["first", "One.", "second", "Two.", "third", "Three."]
    for engine in engines:
        assert await said(engine, session_id) == everything
        [session] = await listed(engine)
        assert (session["sessionId"], session["title"]) == (session_id, "first")
    asked = [message["content"] for message in model.asked[-1]["messages"] if message["role"] != "system"]
    assert asked == everything[:-1]
    assert await status(there, turn_id) == "done"
    assert (await there.events("GET", f"/v1/turns/{turn_id}/events"))[-1].data == first[-1].data

    assert (await there.client.delete(f"/v1/sessions/{session_id}")).status_code == 202
    for engine in engines:
        assert await listed(engine) == []
        assert (await engine.client.get(f"/v1/sessions/{session_id}/messages")).status_code == 404
        refused = await engine.client.post("/v1/chat", json={"message": "Hi", "sessionId": session_id})
        assert refused.status_code == 404


# --- Stop ---


@promise("stop works from any engine")
@pytest.mark.parametrize("notified", [True, False], ids=["notified", "the message is lost"])
async def test_a_turn_is_stopped_from_the_other_engine(
    engines: tuple[Engine, Engine], model: Model, monkeypatch: pytest.MonkeyPatch, notified: bool
) -> None:
    if not notified:

        def lost(_: ControlPublisher, turn_id: str) -> None: ...

        monkeypatch.setattr(ControlPublisher, "stop", lost)
    here, there = engines
    model.held.clear()
    turn = await here.begin()
    await wait_until(lambda: model.open == 1, what="the model's stream")
    asked_at = time.monotonic()
    answer = await there.client.post(f"/v1/turns/{turn['turnId']}/cancel")

    assert answer.json() == {"turnId": turn["turnId"], "status": "cancelled"}
    assert not notified or time.monotonic() - asked_at < 2.0
    assert await status(here, turn["turnId"]) == "cancelled"
    await wait_until(lambda: model.open == 0, what="the end of the model's stream")


# --- Adoption ---


@promise("an engine that goes down in good order leaves its turns to the others at once")
@promise("what Redis loses is missing in no session")
@pytest.mark.parametrize("flushed", [False, True], ids=["Redis stays", "Redis is lost too"])
async def test_an_engine_that_goes_down_leaves_its_turns_to_the_other_at_once(
    place: Place, model: Model, flushed: bool
) -> None:
    model.held.clear()
    async with place.engine() as there:
        async with place.engine() as here:
            turn = await here.begin()
            await wait_until(lambda: model.open == 1, what="the model's stream")
        left_at = time.monotonic()
        if flushed:
            with SyncRedis.from_url(place.redis_url) as redis:
                redis.flushall()
        await wait_until(lambda: model.open == 1, what="the model being asked again")
        assert time.monotonic() - left_at < 5.0
        model.held.set()
        events = await there.events("GET", turn["eventsUrl"])
        assert [event.name for event in events if event.name in ("reset", "done")] == ["reset", "done"]
        assert await said(there, turn["sessionId"]) == ["Hi", "Hello"]


@promise("another engine adopts the turns of an engine that is gone, and the old owner is fenced")
async def test_a_fenced_owner_stops_and_ends_nothing(
    engines: tuple[Engine, Engine], model: Model, place: Place
) -> None:
    here, _ = engines
    model.held.clear()
    turn = await here.begin()
    await wait_until(lambda: model.open == 1, what="the model's stream")
    async with place.database() as database:  # as if the other one had taken it for dead
        await database.write(
            lambda tx: tx.execute(
                "UPDATE turns SET epoch = epoch + 1,"
                " owner = (SELECT engine_id FROM engines WHERE engine_id <> turns.owner) WHERE turn_id = $1",
                turn["turnId"],
            )
        )
    await wait_until(lambda: len(model.asked) == 2, 30, what="the other engine's request")
    await wait_until(lambda: model.open == 1, 30, what="the end of the first engine's request")
    model.held.set()

    for engine in engines:
        events = await engine.events("GET", turn["eventsUrl"])
        assert [event.name for event in events].count("done") == 1
        assert await said(engine, turn["sessionId"]) == ["Hi", "Hello"]
        assert await status(engine, turn["turnId"]) == "done"


@promise("another engine adopts the turns of an engine that is gone, and the old owner is fenced")
@pytest.mark.usefixtures("killed")
@SHORT_LEASES
async def test_an_unpublished_call_is_published_by_the_adopter(place: Place, redis_url: str, model: Model) -> None:
    turn = await left_behind(place)
    call = ToolCall("call_1", new_id(), "job__quick", "{}")
    [(owner,)] = place.store.rows("SELECT owner FROM turns")
    async with place.database() as database:  # its last commit before it died
        request = FakeWorker().request(turn, call, tool("job__quick"), {})
        await EngineStore(database, owner).calls.add_round(turn, AssistantMessage("", (call,)), [request], {})

    async with place.engine():
        redis: Any
        with SyncRedis.from_url(redis_url, decode_responses=True) as redis:
            await wait_until(lambda: redis.exists(KEYS.call(call.correlation_id)), what="the call")
            [(_, published)] = redis.xrange(KEYS.requests)
    [(adopter,)] = place.store.rows("SELECT owner FROM turns")
    assert adopter != owner
    assert KEYS.mailbox(adopter) in published["event"], "its answer goes to its new owner"


@promise("another engine adopts the turns of an engine that is gone, and the old owner is fenced")
@pytest.mark.usefixtures("killed")
@SHORT_LEASES
async def test_an_engine_that_is_frozen_during_a_commit_does_not_prevent_adoption(place: Place, model: Model) -> None:
    turn = await left_behind(place)
    asked, begun_once, wakes = len(model.asked), Event(), Event()

    def unit(tx: Transaction) -> list[Any]:
        tx.execute("UPDATE turns SET crashes = crashes WHERE turn_id = $1", turn.turn_id)
        if not begun_once.is_set():
            begun_once.set()
            wakes.wait(30)
        return tx.execute("UPDATE turns SET crashes = 0 WHERE turn_id = $1 AND epoch = 1 RETURNING 1", turn.turn_id)

    async with place.database() as database:
        standing = asyncio.create_task(database.write(unit))
        await wait_until(begun_once.is_set, what="the lock of the turn's row")
        async with place.engine():
            await wait_until(lambda: len(model.asked) > asked, 15, what="the adoption")
            wakes.set()
            assert await standing == [], "what it did before was rolled back, and its turn is another's"
            model.held.set()


async def left_behind(place: Place) -> Turn:
    """A turn in the middle of its first answer, whose engine has gone."""
    model = place.model
    model.held.clear()
    async with place.engine() as engine:
        left = await engine.begin()
        await wait_until(lambda: model.open == 1, what="the model's stream")
    await wait_until(lambda: model.open == 0, what="the end of that stream")
    [(subject,)] = place.store.rows("SELECT subject FROM sessions")
    return Turn(left["turnId"], left["sessionId"], subject)


# --- Redis and the database away ---


@promise("with Redis away sessions and text go on at every engine")
async def test_without_redis_every_session_works_at_every_engine(
    tmp_path: Path, own_redis: LocalServer, postgres_url: str, model: Model
) -> None:
    async with Place(tmp_path, own_redis.url, postgres_url, model).engines() as (here, there):
        first = await here.chat("first")
        session_id = session_of(first)
        own_redis.kill()

        assert (await there.events("GET", f"/v1/turns/{first[0].data['turnId']}/events"))[-1].name == "done"
        assert await said(there, session_id) == ["first", "Hello"]
        assert (await there.chat("second", sessionId=session_id))[-1].data["reason"] == "stop"
        assert (await here.chat("third", sessionId=session_id))[-1].data["reason"] == "stop"
        new = session_of(await there.chat("new"))
        for engine in (here, there):
            assert await said(engine, session_id) == ["first", "Hello", "second", "Hello", "third", "Hello"]
            assert [each["sessionId"] for each in await listed(engine)] == [new, session_id]

        model.held.clear()
        turn = await here.begin()
        stopped = await there.client.post(f"/v1/turns/{turn['turnId']}/cancel")
        assert stopped.json() == {"turnId": turn["turnId"], "status": "cancelled"}
        assert await status(here, turn["turnId"]) == "cancelled"


@promise("PostgreSQL is killed again and again: nothing accepted is lost, no living engine's turn is taken")
@promise("with the database away nothing is accepted, and it heals without a restart")
async def test_without_the_database_nothing_is_accepted_until_it_is_back(
    tmp_path: Path, redis_url: str, own_postgres: PostgresServer, model: Model
) -> None:
    place = Place(tmp_path, redis_url, own_postgres.create_database(), model)
    async with place.engines() as both:
        session_id = session_of(await both[0].chat("first"))
        own_postgres.kill()
        for method, path, body in (
            ("POST", "/v1/chat", {"message": "lost"}),
            ("POST", f"/v1/sessions/{session_id}/turns", {"message": "lost"}),
            ("POST", "/v1/sessions", None),
            ("GET", f"/v1/sessions/{session_id}/messages", None),
            ("DELETE", f"/v1/sessions/{session_id}", None),
        ):
            refused = await both[0].client.request(method, path, json=body)
            assert (refused.status_code, refused.headers.get("retry-after")) == (503, "5"), path
        for engine in both:
            health = [(await engine.client.get(path)).status_code for path in ("/readyz", "/healthz")]
            assert health == [503, 200]
        own_postgres.start()

        async def accepted() -> bool:
            answers = [await engine.client.post("/v1/sessions") for engine in both]
            return all(answer.is_success for answer in answers)

        await wait_until(accepted, 10, what="a new session at each engine")
        await both[1].chat("second", sessionId=session_id)
        for engine in both:
            assert await said(engine, session_id) == ["first", "Hello", "second", "Hello"]
    assert place.store.count("messages WHERE content = 'lost'") == 0
    place.store.close()
