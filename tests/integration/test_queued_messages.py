"""Messages that wait for the turns before them: the store keeps them, in order, whatever becomes of their clients."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dialog_engine.chat.times import TurnTimes
from dialog_engine.wiring.times import EngineTimes
from tests.integration.engines import Engine, Model, Stream, running_engine, settings, with_times
from tests.marks import promise
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until


@pytest.fixture
def model(model: Model) -> Model:
    """It never comes to an end of its own accord."""
    model.held.clear()
    return model


NO_LOOKS = EngineTimes(turns=TurnTimes(look=3600))
"""No engine looks for messages that wait: the ends of turns begin them."""


async def send(engine: Engine, session_id: str, text: str, on_busy: str = "queue", **fields: str) -> httpx2.Response:
    body = {"message": text, "onBusy": on_busy, **fields}
    return await engine.client.post(f"/v1/sessions/{session_id}/turns", json=body)


async def queued(engine: Engine, session_id: str, text: str) -> str:
    """A message that waits: its turn."""
    answer = await send(engine, session_id, text)
    assert (answer.status_code, answer.json()["status"]) == (202, "waiting"), answer.text
    return answer.json()["turnId"]


async def running(engine: Engine) -> tuple[str, str]:
    """A session in which a turn runs, and that turn."""
    turn = await engine.begin("first")
    assert turn["status"] == "running"
    return turn["sessionId"], turn["turnId"]


async def state(engine: Engine, turn_id: str) -> dict[str, Any]:
    answer = await engine.client.get(f"/v1/turns/{turn_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ended(engine: Engine, turn_id: str) -> str:
    """How a turn ends."""
    return (await engine.events("GET", f"/v1/turns/{turn_id}/events"))[-1].data["reason"]


async def said(engine: Engine, session_id: str) -> list[str]:
    messages = (await engine.client.get(f"/v1/sessions/{session_id}/messages")).json()["messages"]
    return [each["content"] for each in messages if each["role"] == "user"]


async def hold(engine: Engine, session_id: str, turn_id: str, text: str) -> str:
    """A message that is held, because the turn before it was stopped."""
    waiting = await queued(engine, session_id, text)
    await engine.client.post(f"/v1/turns/{turn_id}/cancel")
    assert (await state(engine, waiting))["held"] == "STOPPED"
    return waiting


@promise("messages that wait for their session are answered in the order in which they came, on all engines")
@promise("a message that waits is sent once, whatever becomes of the engine and of its client")
@with_times(NO_LOOKS)
async def test_each_end_of_a_turn_begins_the_next_message_wherever_it_was_sent(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    session_id, _ = await running(here)
    turns = [await queued(engine, session_id, text) for engine, text in ((there, "a"), (here, "b"), (there, "c"))]
    shown = (await there.client.get("/v1/me/pending")).json()["messages"]
    assert [(each["message"], each["turnId"]) for each in shown] == [*zip("abc", turns, strict=True)]
    listed = (await here.client.get("/v1/sessions")).json()["sessions"][0]
    assert (listed["waiting"], listed["held"]) == (3, None)
    assert await here.metric("dialog_messages_queued 3.0")

    model.held.set()

    for turn_id in turns:
        assert await ended(there, turn_id) == "stop"
    assert await said(here, session_id) == ["first", "a", "b", "c"]
    nothing: dict[str, list[str]] = {"approvals": [], "clientCalls": [], "messages": [], "questions": []}
    assert (await here.client.get("/v1/me/pending")).json() == nothing


@promise("a message that waits is sent once, whatever becomes of the engine and of its client")
async def test_the_stream_of_a_message_is_silent_until_its_turn_begins_and_may_be_closed(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    session_id, _ = await running(here)
    body = {"message": "closed", "sessionId": session_id, "onBusy": "queue"}
    async with here.stream("POST", "/v1/chat", json=body) as stream:
        closed = stream.response.headers["x-turn-id"]
    followed = await queued(here, session_id, "followed")

    async def read(engine: Engine) -> list[str]:
        return [each.name for each in await engine.events("GET", f"/v1/turns/{followed}/events")]

    readers = [asyncio.create_task(read(engine)) for engine in engines]
    await wait_until(lambda: here.metric("dialog_event_streams 1.0"), what="its stream")
    model.held.set()

    for names in await asyncio.gather(*readers):
        assert (names[0], names[-1]) == ("control", "done")
    assert await said(there, session_id) == ["first", "closed", "followed"]
    assert (await state(here, closed))["status"] == "done"


async def test_a_message_is_changed_and_withdrawn_until_its_turn_begins(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    session_id, _ = await running(here)
    edited, gone = await queued(here, session_id, "a"), await queued(here, session_id, "b")
    answer = await there.client.patch(f"/v1/turns/{edited}", json={"message": "changed"})
    assert (answer.status_code, answer.json()["message"], answer.json()["status"]) == (200, "changed", "waiting")

    async def until_withdrawn(stream: Stream) -> str:
        return (await stream.until("withdrawn")).data["turnId"]

    async with here.stream("GET", f"/v1/turns/{gone}/events") as stream:
        reading = asyncio.create_task(until_withdrawn(stream))
        for _ in range(2):
            assert (await there.client.delete(f"/v1/turns/{gone}")).json()["status"] == "withdrawn"
        assert await reading == gone
    path = f"/v1/turns/{gone}/events"
    assert [each.name for each in await there.events("GET", path)] == ["withdrawn"]
    assert await there.status("GET", path, headers={"last-event-id": "0-1"}) == 204
    assert (await here.client.post(f"/v1/turns/{gone}/cancel")).json()["status"] == "withdrawn"
    model.held.set()
    assert await ended(there, edited) == "stop"
    assert await said(here, session_id) == ["first", "changed"]
    for method, body in (("PATCH", {"message": "late"}), ("DELETE", None)):
        refused = await here.client.request(method, f"/v1/turns/{edited}", json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "TURN_STARTED")
        assert await there.status(method, "/v1/turns/none", json=body) == 404


@promise("a message that waits begins only with the rights that its sender has then, and is held otherwise")
async def test_after_a_stop_the_next_message_is_held_with_those_behind_it_until_it_is_sent(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    session_id, turn_id = await running(here)
    first = await hold(here, session_id, turn_id, "held")
    second = await queued(there, session_id, "behind")
    refused = await send(here, session_id, "now", "refuse")
    assert (refused.status_code, refused.json()["turnId"]) == (409, first)
    listed = (await here.client.get("/v1/sessions")).json()["sessions"][0]
    assert (listed["waiting"], listed["held"]) == (2, "STOPPED")

    sent = await there.client.post(f"/v1/turns/{first}/send")

    assert (sent.status_code, sent.json()["status"]) == (202, "running")
    model.held.set()
    assert await ended(here, second) == "stop"
    assert await said(here, session_id) == ["first", "held", "behind"]


@promise("messages that wait for their session are answered in the order in which they came, on all engines")
async def test_the_twenty_first_message_is_refused(engines: tuple[Engine, Engine]) -> None:
    here, there = engines
    session_id, _ = await running(here)
    for number in range(20):
        await queued((here, there)[number % 2], session_id, "x" * 100_000)
    refused = await send(here, session_id, "one more")
    assert (refused.status_code, refused.json()["code"], "retry-after" in refused.headers) == (
        429,
        "LIMIT_EXCEEDED",
        True,
    )


@promise("a message that a client names and sends again begins no second turn")
async def test_a_message_that_is_named_and_sent_again_is_the_same_turn_on_both_endpoints(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    body = {"message": "Hi", "clientMessageId": "m1"}
    async with here.stream("POST", "/v1/chat", json=body) as stream:
        turn_id, session_id = (stream.response.headers[f"x-{each}-id"] for each in ("turn", "session"))
    async with there.stream("POST", "/v1/chat", json=body) as again:
        assert again.response.headers["x-turn-id"] == turn_id
    waiting = await send(here, session_id, "Next", clientMessageId="m2")
    repeated = await send(there, session_id, "Next", clientMessageId="m2")
    assert repeated.json() == waiting.json() | {"status": "waiting"}
    for other in (
        await there.client.post("/v1/chat", json=body | {"message": "Ho"}),
        await send(here, session_id, "Ho", clientMessageId="m2"),
    ):
        assert (other.status_code, other.json()["code"]) == (409, "CLIENT_MESSAGE_REUSED")
    await here.client.delete(f"/v1/turns/{waiting.json()['turnId']}")
    assert (await send(there, session_id, "Next", clientMessageId="m2")).json()["status"] == "withdrawn"
    model.held.set()
    assert await ended(there, turn_id) == "stop"
    assert (await there.events("POST", "/v1/chat", json=body))[-1].name == "done"
    assert await here.status("DELETE", f"/v1/sessions/{session_id}") == 202
    gone = await there.client.post("/v1/chat", json=body)
    assert (gone.status_code, gone.json()["code"]) == (404, "TURN_NOT_FOUND")
    assert len((await here.client.get("/v1/sessions")).json()["sessions"]) == 0


async def test_what_waits_is_exported_and_goes_with_its_session(engines: tuple[Engine, Engine]) -> None:
    here, there = engines
    session_id, turn_id = await running(here)
    waiting = await queued(there, session_id, "of mine")
    assert (await here.client.get(f"/v1/sessions/{session_id}/messages")).json()["waiting"][0]["message"] == "of mine"
    assert '"of mine"' in (await there.client.get("/v1/me/data")).text
    path = f"/v1/sessions/{session_id}"
    refused = await there.client.delete(path)
    assert (refused.status_code, refused.json()["turnId"]) == (409, turn_id)
    async with there.stream("GET", f"/v1/turns/{waiting}/events") as stream:
        assert (await there.client.delete(f"{path}?stop=true")).status_code == 202
        assert (await stream.until("withdrawn")).data == {"turnId": waiting}
    assert (await here.client.get(f"/v1/turns/{waiting}")).status_code == 404


@promise("messages that wait for their session are answered in the order in which they came, on all engines")
async def test_the_order_holds_while_redis_is_away(tmp_path: Path, model: Model) -> None:
    (tmp_path / "redis").mkdir()
    redis = LocalServer(embedded_binary(), tmp_path / "redis")
    redis.start()
    try:
        async with running_engine(settings(tmp_path / "here", redis.url, model.url), times=NO_LOOKS) as here:
            session_id, _ = await running(here)
            redis.kill()
            turns = [await queued(here, session_id, text) for text in ("a", "b")]
            model.held.set()
            for turn_id in turns:
                assert await ended(here, turn_id) == "stop"
            assert await said(here, session_id) == ["first", "a", "b"]
    finally:
        redis.stop()


@promise("a message that waits is sent once, whatever becomes of the engine and of its client")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_message_waits_over_the_shutdown_of_its_engine(
    tmp_path: Path, redis_url: str, model: Model, store: str, request: pytest.FixtureRequest
) -> None:
    changes = {"database_url": request.getfixturevalue("postgres_url")} if store == "postgres" else {}
    configured = settings(tmp_path, redis_url, model.url, **changes)
    async with httpx2.AsyncClient(timeout=30, trust_env=False) as client:
        async with running_engine(configured) as engine:
            session_id, _ = await running(engine)
            waiting = await queued(engine, session_id, "next")
            reading = asyncio.create_task(client.get(f"{engine.url}/v1/turns/{waiting}/events"))
            await wait_until(lambda: engine.metric("dialog_event_streams 1.0"), what="its stream")
        silent = (await reading).text
    assert ("event:" in silent, ": reconnect" in silent) == (False, True)
    model.held.set()
    async with running_engine(configured) as engine:
        assert await ended(engine, waiting) == "stop"
        assert await said(engine, session_id) == ["first", "next"]
