"""Parked turns with real storage, Redis and HTTP: what engines hold of them, and what their readers see."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from redis import Redis as SyncRedis

from dialog_engine.chat.ownership import OwnershipTimes
from dialog_engine.wiring.times import EngineTimes
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.keys import Keys
from tests.integration.engines import Engine, Event, Model, Start, publish, running_engine, settings, with_times
from tests.marks import promise
from tests.support.fakes.worker import tool
from tests.support.servers import LocalServer
from tests.support.waiting import wait_until

KEYS = Keys()
DELETE = tool("files__delete", {"type": "object"}, title="Delete", approval=ApprovalPolicy.ALWAYS)


@pytest.fixture
async def engines(start: Start, redis_url: str, postgres_url: str) -> AsyncGenerator[tuple[Engine, Engine]]:
    """Two engines that share a database, and offer the tool."""
    publish(redis_url, DELETE)
    async with start(database_url=postgres_url) as here, start(database_url=postgres_url) as there:
        for each in (here, there):
            await wait_until(each.offers, what="the tool")
        yield here, there


class Asking:
    """A parked turn, and how it is answered."""

    def __init__(self, turn: dict[str, str], question: dict[str, Any]) -> None:
        self.turn_id, self.session_id = turn["turnId"], turn["sessionId"]
        self.events_at = f"/v1/turns/{self.turn_id}/events"
        self.question = question

    async def refuse(self, engine: Engine) -> int:
        call = self.question["correlationId"]
        return await engine.status("POST", f"/v1/turns/{self.turn_id}/approvals/{call}", json={"decision": "refuse"})

    async def state(self, engine: Engine) -> dict[str, Any]:
        return (await engine.client.get(f"/v1/turns/{self.turn_id}")).json()


async def is_parked(engine: Engine, turn_id: str) -> bool:
    return (await engine.client.get(f"/v1/turns/{turn_id}")).json().get("parked", False)


async def asking(engine: Engine, model: Model) -> Asking:
    """A turn that asks its user, and is parked."""
    model.will_call(DELETE.name)
    turn = await engine.begin("Delete it")
    await wait_until(partial(is_parked, engine, turn["turnId"]), what="the parked turn")
    [pending] = [
        each
        for each in (await engine.client.get("/v1/me/pending")).json()["approvals"]
        if each["turnId"] == turn["turnId"]
    ]
    return Asking(turn, pending)


def kinds(events: list[Event]) -> list[str]:
    return [
        f"{each.data['type']} {each.data.get('status', '')}".strip() if each.name == "control" else each.name
        for each in events
    ]


@asynccontextmanager
async def reading(engine: Engine, path: str) -> AsyncGenerator[list[Event]]:
    """What one connection gets while the block runs; it must end with `done` by itself."""
    events: list[Event] = []
    attached = asyncio.Event()

    async def read() -> None:
        async with engine.stream("GET", path) as stream:
            async for event in stream:
                events.append(event)
                attached.set()

    reader = asyncio.create_task(read())
    await asyncio.wait_for(attached.wait(), 30)
    yield events
    await asyncio.wait_for(reader, 60)
    assert events[-1].name == "done", "the connection was not ended before"


@promise("a turn that waits for people only is parked: no engine has it, and none adopts it")
async def test_readers_at_every_engine_stay_attached_and_see_the_parked_turn_go_on(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    asked = await asking(here, model)
    for engine in engines:
        await wait_until(lambda engine=engine: engine.metric("dialog_turns_running 0.0"), what="no running turn")
    assert await here.metric("dialog_turns_parked 1.0")
    assert await there.metric("dialog_approvals_waiting 1.0")
    model.will_say("So be it.")

    async with reading(here, asked.events_at) as first, reading(there, asked.events_at) as second:
        await wait_until(lambda: "waiting" in kinds(first) and "waiting" in kinds(second), what="what was asked")
        assert await asked.refuse(there) == 200

    for events in (first, second):
        seen = kinds(events)
        assert "reset" not in seen
        assert seen.count("turn started") == 1
        refused = seen.index("approval refused")
        assert seen[refused + 1 : refused + 3] == ["tool refused", "tools complete"]
        assert [each for each in seen if each.split()[0] in ("approval", "waiting")] == [
            "approval asked",
            "waiting",
            "approval refused",
        ]
        assert [each.data["content"] for each in events if each.name == "message"][-1] == "So be it."
    assert [each.id for each in first] == [each.id for each in second]
    state = await asked.state(here)
    assert (state["status"], "parked" in state) == ("done", False)
    assert await here.metric("dialog_turns_parked 0.0")


@promise("what a parked turn has shown is replayed from the store when its log is not kept any more")
async def test_a_parked_turn_is_read_and_goes_on_after_its_log_has_expired(
    engines: tuple[Engine, Engine], model: Model, redis_url: str
) -> None:
    here, there = engines
    asked = await asking(here, model)
    async with here.stream("GET", asked.events_at) as stream:
        seen = await anext(aiter(stream))
    with SyncRedis.from_url(redis_url) as redis:
        assert redis.delete(KEYS.turn(asked.turn_id)) == 1
    model.will_say("So be it.")

    old = f"{asked.events_at}?after={seen.id}"
    async with reading(there, asked.events_at) as new, reading(here, old) as returning:
        await wait_until(lambda: "waiting" in kinds(new), what="what was asked")
        assert kinds(new) == ["turn started", "message", "tool pending", "approval asked", "waiting"]
        assert kinds(returning) == ["reset"]
        assert returning[0].data["reason"] == "log_lost"
        async with there.stream("GET", f"{asked.events_at}?after={new[2].id}") as stream:
            assert kinds([await anext(aiter(stream)), await anext(aiter(stream))]) == ["approval asked", "waiting"]
        assert await asked.refuse(there) == 200

    for events in (new, returning):
        assert "reset" in kinds(events)[1:], "the log of its earlier epoch is gone"
    assert kinds(await here.events("GET", asked.events_at))[-1] == "done"


@promise("any engine takes a decision on the turn of any other, also while Redis is away")
async def test_a_parked_turn_goes_on_while_redis_is_away(tmp_path: Path, own_redis: LocalServer, model: Model) -> None:
    publish(own_redis.url, DELETE)
    async with running_engine(settings(tmp_path, own_redis.url, model.url)) as engine:
        await wait_until(engine.offers, what="the tool")
        asked = await asking(engine, model)
        model.will_say("So be it.")
        own_redis.kill()
        async with reading(engine, asked.events_at) as events:
            assert "turn started" in kinds(events)
            assert await asked.refuse(engine) == 200
        own_redis.start()
    assert [each.data["content"] for each in events if each.name == "message"][-1] == "So be it."


async def send(engine: Engine, session_id: str, **fields: str) -> httpx2.Response:
    return await engine.client.post(f"/v1/sessions/{session_id}/turns", json={"message": "This instead", **fields})


@promise("nothing is parked while an engine of a release that does not know it shares the store")
@with_times(EngineTimes(ownership=OwnershipTimes(lease=120.0)))
async def test_a_turn_that_waits_beside_an_engine_of_an_earlier_release_is_parked_when_that_is_gone(
    engines: tuple[Engine, Engine], model: Model, postgres_url: str
) -> None:
    here, there = engines
    with psycopg.connect(postgres_url, autocommit=True) as store:
        store.execute("INSERT INTO engines (engine_id, lease_until, release, started_at) VALUES ('old', 1, '0.1.0', 1)")
        model.will_call(DELETE.name)
        turn = await here.begin("Delete it")
        async with here.stream("GET", f"/v1/turns/{turn['turnId']}/events") as stream:
            while (await stream.until("control")).data["type"] != "waiting":
                pass
        assert not await is_parked(here, turn["turnId"])
        assert await here.metric("dialog_turns_running 1.0")
        store.execute("UPDATE engines SET lease_until = 0 WHERE engine_id = 'old'")  # it has ended
    await wait_until(partial(is_parked, there, turn["turnId"]), what="the parked turn")
    await wait_until(lambda: here.metric("dialog_turns_running 0.0"), what="no running turn")


@promise("a message may decline what a turn asks, and begins after it")
async def test_a_message_is_refused_with_what_is_open_or_waits_or_declines_it(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    asked = await asking(here, model)
    refused = await send(there, asked.session_id)
    assert (refused.status_code, refused.json()["code"]) == (409, "TURN_RUNNING")
    [call] = refused.json()["waitsFor"]
    assert (call["kind"], call["correlationId"], call["toolName"]) == (
        "approval",
        asked.question["correlationId"],
        DELETE.name,
    )
    assert "onOpenQuestion" in refused.json()["detail"]
    waits = await send(there, asked.session_id, onBusy="queue")
    assert waits.json()["status"] == "waiting"
    model.will_say("This it is.")
    async with reading(here, asked.events_at) as events:
        sent = await send(there, asked.session_id, onOpenQuestion="decline")
    assert (sent.status_code, sent.json()["status"]) == (202, "waiting")

    answered = await there.events("GET", sent.json()["eventsUrl"])
    assert [each.data["content"] for each in answered if each.name == "message"] == ["This it is."]
    assert kinds(events)[-4:] == ["waiting", "approval refused", "tool refused", "done"]
    assert events[-1].data["reason"] == "cancelled"
    assert (await asked.state(here))["status"] == "cancelled"
    assert (await here.events("GET", waits.json()["eventsUrl"]))[-1].name == "done", "those behind it follow"
    assert len(model.asked) == 3, "the model is not asked about what was declined"


@promise("what a reply, a turn and a subject consume is limited")
async def test_a_parked_turn_takes_no_place_and_goes_on_when_none_is_free_and_its_tokens_count_once(
    tmp_path: Path, redis_url: str, model: Model
) -> None:
    publish(redis_url, DELETE)
    limits = {"api_keys": "ann:" + "a" * 40, "subject_max_turns": 1, "subject_tokens_per_day": 41}
    async with running_engine(settings(tmp_path, redis_url, model.url, **limits)) as engine:
        engine.client.headers["authorization"] = f"Bearer {'a' * 40}"
        await wait_until(engine.offers, what="the tool")
        first, second = await asking(engine, model), await asking(engine, model)
        model.held.clear()
        for asked in (first, second):
            assert await asked.refuse(engine) == 200
        await wait_until(lambda: model.open == 2, what="both turns")
        refused = await send(engine, (await engine.client.post("/v1/sessions")).json()["sessionId"])
        assert (refused.status_code, "1 turns" in refused.text) == (429, True), "they count again"
        model.held.set()
        for asked in (first, second):
            assert (await engine.events("GET", asked.events_at))[-1].data["reason"] == "stop"

        async def answered() -> bool:
            session_id = (await engine.client.post("/v1/sessions")).json()["sessionId"]
            return (await send(engine, session_id)).status_code == 202

        await wait_until(answered, what="a free place: four rounds of ten tokens were counted, each once")
