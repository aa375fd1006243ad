"""`GET /v1/events` through whole engines: what changes reaches each reader of its subject, whichever engine it asks."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engines import Engine, Event, Model, Stream, publish, running_engine, settings
from tests.marks import promise
from tests.support.fakes.worker import tool
from tests.support.servers import LocalServer


async def next_of(stream: Stream, *names: str) -> Event:
    return await anext(event async for event in stream if event.name in names)


async def idle(stream: Stream, session_id: str) -> Event:
    """The event with which a session is idle; those before it are of the same session."""
    while True:
        event = await next_of(stream, "session")
        assert event.data["sessionId"] == session_id
        if event.data["runningTurnId"] is None:
            return event


async def test_a_new_reader_reads_the_lists_and_then_gets_what_changes(
    engine: Engine, redis_url: str, model: Model
) -> None:
    async with engine.stream("GET", "/v1/events") as stream:
        first = [await anext(stream.__aiter__()) for _ in range(2)]
        assert "dialog_session_readers 1.0" in (await engine.client.get("/metrics")).text
        assert [(event.name, event.data) for event in first] == [("reset", {}), ("tools", {"servers": []})]

        started = (await engine.chat("Buy milk"))[0].data
        now = await idle(stream, started["sessionId"])
        [listed] = (await engine.client.get("/v1/sessions")).json()["sessions"]
        assert now.data == listed
        assert (now.data["title"], now.id) == ("Buy milk", str(now.data["revision"]))

        await engine.client.delete(f"/v1/sessions/{started['sessionId']}")
        gone = await next_of(stream, "session", "deleted")
        assert (gone.name, gone.data["sessionId"]) == ("deleted", started["sessionId"])

        publish(redis_url, tool("demo__add"))
        offered = await next_of(stream, "tools")
        assert [(server["server"], "tools" in server) for server in offered.data["servers"]] == [("demo", False)]


@promise("every change of a session reaches each browser of its subject, in the order in which it was committed")
async def test_a_reader_that_comes_back_gets_what_it_has_missed_once(engine: Engine) -> None:
    async with engine.stream("GET", "/v1/events") as stream:
        reset = await next_of(stream, "reset")
    sessions = [(await engine.chat(f"Question {number}"))[0].data["sessionId"] for number in range(3)]
    await engine.client.delete(f"/v1/sessions/{sessions[1]}")

    async with engine.stream("GET", "/v1/events", headers={"Last-Event-ID": reset.id}) as stream:
        missed = [await next_of(stream, "session", "deleted", "reset") for _ in range(3)]
    found = sorted((event.data["sessionId"], event.name) for event in missed)
    assert found == sorted(zip(sessions, ["session", "deleted", "session"], strict=True))

    async with engine.stream("GET", f"/v1/events?after={missed[-1].id}") as stream:
        assert (await next_of(stream, "session", "deleted", "reset", "tools")).name == "tools"
    async with engine.stream("GET", "/v1/events", headers={"Last-Event-ID": "9" * 18}) as stream:
        assert (await anext(stream.__aiter__())).name == "reset"


@pytest.mark.parametrize("place", ["1-1", "-1", "9" * 19, "٣"])
async def test_a_place_that_is_no_revision_is_refused(engine: Engine, place: str) -> None:
    answer = await engine.client.get("/v1/events", params={"after": place})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "after")


async def test_nobody_sees_the_sessions_of_another_subject(tmp_path: Path, redis_url: str, model: Model) -> None:
    keys = {"api_keys": "ada:key-of-ada-0123456789abcdef,bob:key-of-bob-0123456789abcdef"}
    ada, bob = ({"Authorization": f"Bearer key-of-{name}-0123456789abcdef"} for name in ("ada", "bob"))
    async with running_engine(settings(tmp_path, redis_url, model.url, **keys)) as engine:
        assert (await engine.client.get("/v1/events")).status_code == 401
        async with engine.stream("GET", "/v1/events", headers=bob) as stream:
            await next_of(stream, "tools")
            (await engine.client.post("/v1/sessions", headers=ada)).raise_for_status()
            mine = (await engine.client.post("/v1/sessions", headers=bob)).json()
            assert (await next_of(stream, "session", "deleted")).data["sessionId"] == mine["sessionId"]


async def test_a_session_is_in_at_most_four_events_a_second(engine: Engine) -> None:
    async with engine.stream("GET", "/v1/events") as stream:
        await next_of(stream, "tools")
        begun = time.monotonic()
        session_id = (await engine.chat())[0].data["sessionId"]
        for _ in range(5):
            await engine.chat(sessionId=session_id)
        await engine.client.delete(f"/v1/sessions/{session_id}")
        events = [event async for event in until_deleted(stream)]
        assert len(events) <= 2 + 4 * (time.monotonic() - begun)


async def until_deleted(stream: Stream) -> AsyncGenerator[Event]:
    async for event in stream:
        yield event
        if event.name == "deleted":
            return


async def test_streams_end_when_their_engine_shuts_down(engine: Engine) -> None:
    async with engine.stream("GET", "/v1/events") as stream:
        await next_of(stream, "tools")
        engine.server.should_exit = True
        assert [event async for event in stream] == []


@promise("every change of a session reaches each browser of its subject, in the order in which it was committed")
@pytest.mark.parametrize("redis", ["Redis there", "Redis away"])
async def test_the_change_of_one_engine_reaches_a_reader_at_another(
    tmp_path: Path, own_redis: LocalServer, postgres_url: str, model: Model, redis: str
) -> None:
    def at(name: str) -> Any:
        return settings(tmp_path / name, own_redis.url, model.url, database_url=postgres_url)

    async with AsyncExitStack() as stack:
        here, there = [await stack.enter_async_context(running_engine(at(name))) for name in ("a", "b")]
        stream = await stack.enter_async_context(there.stream("GET", "/v1/events"))
        await next_of(stream, "tools")
        if redis == "Redis away":
            await asyncio.to_thread(own_redis.stop)
        session_id = (await here.client.post("/v1/sessions")).json()["sessionId"]
        begun = time.monotonic()
        assert (await next_of(stream, "session")).data["sessionId"] == session_id
        # The product's times are 250 ms and 3 s; the rest is for a busy machine.
        assert time.monotonic() - begun < (1.5 if redis == "Redis there" else 6)
