"""Answers of turns as one JSON document, through whole engines."""

import asyncio
from typing import Any

import pytest

from plugins_contract.catalog import ApprovalPolicy
from tests.integration.engines import Engine, Model, Start, publish
from tests.marks import promise
from tests.support.fakes.worker import tool
from tests.support.waiting import wait_until

DELETE = tool("files__delete", {"type": "object"}, title="Delete", approval=ApprovalPolicy.ALWAYS)
JSON = {"accept": "application/json"}


async def ask(engine: Engine, message: str = "Hi", **fields: Any) -> tuple[int, dict[str, Any], Any]:
    answer = await engine.client.post("/v1/chat", json={"message": message, "stream": False, **fields})
    return answer.status_code, answer.json(), answer.headers


@promise("a client that reads no stream gets the answer of a turn as one document, or what the turn waits for")
async def test_the_answer_has_what_the_stream_has_at_its_end(engine: Engine) -> None:
    status, answer, headers = await ask(engine)
    assert (status, answer["status"], answer["reason"], answer["text"]) == (200, "done", "stop", "Hello")
    assert answer["usage"] == {"inputTokens": 7, "outputTokens": 3}
    assert answer["calls"] == []
    assert {"reasoning", "error", "waitsFor"}.isdisjoint(answer)
    assert (headers["x-turn-id"], headers["x-session-id"]) == (answer["turnId"], answer["sessionId"])
    turn = (await engine.client.get(f"/v1/turns/{answer['turnId']}")).json()
    assert turn.items() <= answer.items()
    # The same again, later.
    later = await engine.client.get(f"/v1/turns/{answer['turnId']}/events", headers=JSON)
    assert later.json() == answer


@pytest.mark.parametrize(
    ("accept", "fields", "json"),
    [
        ("application/json", {}, True),
        ("application/json, text/plain, */*", {}, True),
        ("*/*", {}, False),
        ("text/event-stream", {}, False),
        ("text/event-stream, application/json", {}, False),
        ("application/json", {"stream": True}, False),
        ("text/event-stream", {"stream": False}, True),
    ],
)
async def test_json_is_for_whoever_asks_for_it(
    engine: Engine, accept: str, fields: dict[str, bool], json: bool
) -> None:
    answer = await engine.client.post("/v1/chat", json={"message": "Hi", **fields}, headers={"accept": accept})
    assert answer.headers["content-type"].startswith("application/json" if json else "text/event-stream")


@promise("a client that reads no stream gets the answer of a turn as one document, or what the turn waits for")
async def test_a_turn_that_waits_for_its_user_answers_at_once_and_goes_on_when_it_is_answered(
    start: Start, redis_url: str, postgres_url: str, model: Model
) -> None:
    publish(redis_url, DELETE)
    async with start(database_url=postgres_url) as here, start(database_url=postgres_url) as there:
        for each in (here, there):
            await wait_until(each.offers, what="the tool")
        model.will_call(DELETE.name)
        status, answer, _ = await ask(here, "Delete it")
        assert (status, answer["status"], answer["reason"]) == (200, "waiting", None)
        [asked] = answer["waitsFor"]
        assert (asked["kind"], asked["toolName"]) == ("approval", DELETE.name)
        [call] = answer["calls"]
        assert (call["toolName"], call["status"], call["approval"]["status"]) == (DELETE.name, "pending", "asked")

        events_at = f"/v1/turns/{answer['turnId']}/events"
        assert (await there.client.get(events_at, headers=JSON)).json()["status"] == "waiting"
        model.will_say("So be it.")
        decided = await there.client.post(asked["answerUrl"], json={"decision": "refuse"})
        assert decided.headers["x-session-id"] == answer["sessionId"]
        end = (await here.client.get(events_at, headers=JSON)).json()
        assert (end["status"], end["text"]) == ("done", "So be it.")
        assert [each["status"] for each in end["calls"]] == ["refused"]


@promise("a client that reads no stream gets the answer of a turn as one document, or what the turn waits for")
async def test_a_turn_of_another_engine_is_answered(start: Start, postgres_url: str, model: Model) -> None:
    model.held.clear()
    async with start(database_url=postgres_url) as here, start(database_url=postgres_url) as there:
        turn = await here.begin()
        waiting = asyncio.create_task(there.client.get(turn["eventsUrl"], headers=JSON))
        await wait_until(lambda: len(model.asked) == 1)
        assert not waiting.done()
        model.held.set()
        assert (await waiting).json()["text"] == "Hello"


async def test_a_failed_turn_is_an_answer_too(start: Start) -> None:
    async with start(model_url="http://127.0.0.1:9/v1") as engine:
        status, failed, _ = await ask(engine)
    assert (status, failed["status"], failed["reason"], failed["text"]) == (200, "failed", "error", "")
    assert {"code", "message"} == failed["error"].keys()


async def test_a_stopped_turn_is_an_answer_too(engine: Engine, model: Model) -> None:
    model.held.clear()
    asked = asyncio.create_task(ask(engine))
    await wait_until(lambda: model.open)
    [session] = [each for each in (await engine.client.get("/v1/sessions")).json()["sessions"] if each["runningTurnId"]]
    await engine.client.post(f"/v1/turns/{session['runningTurnId']}/cancel")
    status, stopped, _ = await asked
    assert (status, stopped["status"], stopped["reason"]) == (200, "cancelled", "cancelled")


async def test_a_message_that_waits_is_accepted_at_once(engine: Engine, model: Model) -> None:
    model.held.clear()
    running = await engine.begin()
    status, answer, _ = await ask(engine, sessionId=running["sessionId"], onBusy="queue")
    assert (status, answer["status"]) == (202, "waiting")
    assert (await engine.client.get(answer["eventsUrl"], headers=JSON)).json()["status"] == "waiting"
    model.held.set()


@promise("a shutdown breaks off no answer as if it were whole")
async def test_an_engine_that_shuts_down_says_that_the_turn_goes_on(start: Start, model: Model) -> None:
    model.held.clear()
    async with start() as engine:
        asked = asyncio.create_task(ask(engine))
        await wait_until(lambda: len(model.asked) == 1)
        engine.server.should_exit = True
        status, answer, headers = await asked
    assert (status, answer["code"], headers["retry-after"], headers["x-should-retry"]) == (
        503,
        "TURN_GOES_ON",
        "1",
        "true",
    )
    assert answer["turnId"] == headers["x-turn-id"]
    model.held.set()
    async with start() as engine:
        end = (await engine.client.get(f"/v1/turns/{answer['turnId']}/events", headers=JSON)).json()
    assert (end["status"], end["text"]) == ("done", "Hello")


@promise("a shutdown breaks off no answer as if it were whole")
@pytest.mark.parametrize(("path", "name"), [("chat/completions", "messages"), ("responses", "input")])
async def test_an_engine_that_shuts_down_says_the_same_of_a_turn_that_has_not_begun(
    start: Start, model: Model, path: str, name: str
) -> None:
    model.held.clear()
    async with start() as engine:
        session_id = (await engine.begin())["sessionId"]
        body = {"model": (await engine.client.get("/v1/models")).json()["data"][0]["id"], "conversation": session_id}
        question = [{"role": "user", "content": "And?"}]
        asked = engine.client.post(f"/v1/{path}", json={**body, name: question}, headers={"x-session-id": session_id})
        asking = asyncio.create_task(asked)

        async def waits() -> bool:
            return (await engine.client.get("/v1/me/pending")).json()["messages"] != []

        await wait_until(waits)
        engine.server.should_exit = True
        answer = await asking
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "true"), answer.text
    assert answer.json()["code"] == "TURN_GOES_ON"


async def test_a_client_that_leaves_cancels_nothing_and_frees_its_place(start: Start, model: Model) -> None:
    model.held.clear()
    async with start(api_keys={"ann": "a key of ann that is long"}, subject_max_streams=1) as engine:
        engine.client.headers["authorization"] = "Bearer a key of ann that is long"
        asked = asyncio.create_task(ask(engine))
        await wait_until(lambda: len(model.asked) == 1)
        assert (await ask(engine))[0] == 429

        async def sessions() -> list[dict[str, Any]]:
            return (await engine.client.get("/v1/sessions")).json()["sessions"]

        begun: list[Any] = await wait_until(sessions, what="the commit, beside which the model is asked")
        asked.cancel()
        turn_id = begun[0]["runningTurnId"] or begun[0]["leafTurnId"]

        async def place_is_free() -> bool:
            async with engine.client.stream("GET", f"/v1/turns/{turn_id}/events") as stream:
                return stream.status_code == 200

        await wait_until(place_is_free)
        assert model.open, "the turn runs on"
        model.held.set()
