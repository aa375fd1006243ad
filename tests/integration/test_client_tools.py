"""Tools that requests bring: offered to the model, called, and answered by the client at any engine; real parts."""

import asyncio
from functools import partial
from typing import Any

import psycopg
import pytest
from redis import Redis as SyncRedis

from plugins_contract.catalog import ApprovalPolicy
from tests.integration.engines import SHORT_LEASES, Engine, Event, Model, Start, publish
from tests.integration.test_questions import statuses
from tests.marks import promise
from tests.support.fakes.worker import tool
from tests.support.waiting import wait_until

COLOUR: dict[str, Any] = {
    "name": "pick_colour",
    "description": "Ask the page for a colour.",
    "inputSchema": {"type": "object", "properties": {"of": {"type": "string"}}},
}
OURS = tool("files__delete", {"type": "object"}, approval=ApprovalPolicy.ALWAYS)


class Calling:
    """A turn that waits for its client, and the calls that it waits for."""

    def __init__(self, turn: dict[str, str]) -> None:
        self.turn_id, self.session_id = turn["turnId"], turn["sessionId"]
        self.calls: list[dict[str, Any]] = []

    async def begun(self, engine: Engine, calls: int = 1) -> "Calling":
        async def waits() -> list[dict[str, Any]]:
            listed = (await engine.client.get("/v1/me/pending")).json()["clientCalls"]
            mine = [each for each in listed if each["turnId"] == self.turn_id]
            return mine if len(mine) == calls else []

        self.calls = await wait_until(waits, 30, what="the calls")
        return self

    async def is_parked(self, engine: Engine) -> bool:
        return (await engine.client.get(f"/v1/turns/{self.turn_id}")).json().get("parked", False)

    async def answer(self, engine: Engine, content: Any = "teal", call: int = 0, **fields: Any) -> tuple[int, Any]:
        response = await engine.client.post(self.calls[call]["answerUrl"], json={"content": content, **fields})
        return response.status_code, response.json()

    async def ended(self, engine: Engine) -> list[Event]:
        return await engine.events("GET", f"/v1/turns/{self.turn_id}/events")


async def calling(engine: Engine, model: Model, *, calls: int = 1, **fields: Any) -> Calling:
    """A turn whose model has called the client's tool."""
    model.will_call(*["pick_colour"] * calls)
    begun = await engine.begin("Which one?", clientTools=[COLOUR], **fields)
    return await Calling(begun).begun(engine, calls)


def offered(model: Model, request: int = -1) -> list[str]:
    return [each["function"]["name"] for each in model.asked[request].get("tools", ())]


def of_tools(events: list[Event]) -> list[dict[str, Any]]:
    return [each.data for each in events if each.data.get("type") == "tool"]


@promise("the result of a client's tool is taken once, at any engine, and goes on with the turn")
async def test_a_call_waits_for_its_client_and_any_engine_takes_the_result(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    waits = await calling(here, model)
    await wait_until(partial(waits.is_parked, here), what="the parked turn")
    [call] = waits.calls
    assert (call["toolName"], call["server"], call["arguments"]) == ("pick_colour", "client", {})
    [session] = (await there.client.get("/v1/sessions")).json()["sessions"]
    assert (session["awaitsClient"], session["awaitsApproval"]) == (True, False)
    document = await there.client.get(f"/v1/turns/{waits.turn_id}/events", headers={"accept": "application/json"})
    [named] = document.json()["waitsFor"]
    assert (named["kind"], named["answerUrl"]) == ("clientTool", call["answerUrl"])
    [message] = (await there.client.get(f"/v1/sessions/{waits.session_id}/messages")).json()["messages"][1:]
    assert {"status": "pending", "waitsFor": "client"}.items() <= message["toolCalls"][0].items()
    assert "approval" not in message["toolCalls"][0]
    refused = f"/v1/turns/{waits.turn_id}/approvals/{call['correlationId']}"
    assert await here.status("POST", refused, json={"decision": "refuse"}) == 404

    model.will_say("Teal it is.")
    status, answered = await waits.answer(there)
    assert (status, answered["status"], answered["result"]["text"]) == (200, "succeeded", "teal")
    events = await waits.ended(here)
    assert [each["status"] for each in of_tools(events)] == ["pending", "succeeded"]
    assert {"waitsFor": "client", "arguments": {}}.items() <= of_tools(events)[0].items()
    [waiting] = [each.data for each in events if each.data.get("type") == "waiting"]
    said = {"type": "waiting", "approvals": 0, "clientCalls": 1, "calls": [call["correlationId"]]}
    assert waiting == said | {"usage": {"inputTokens": 7, "outputTokens": 3}}
    assert statuses(events, "approval") == []
    assert model.asked[1]["messages"][-1]["content"] == "teal"
    assert offered(model, 0) == offered(model, 1) == ["pick_colour"]
    assert events[-1].data["reason"] == "stop"
    assert await there.metric('dialog_tool_calls_total{status="succeeded",tool="client"} 1.0')


@promise("an open call of a client outlives the kill of any engine, and its result is taken once")
@SHORT_LEASES
@pytest.mark.usefixtures("killed")
async def test_another_engine_takes_the_result_when_that_of_the_call_was_killed(
    start: Start, model: Model, postgres_url: str
) -> None:
    async with start(database_url=postgres_url) as there:
        async with start(database_url=postgres_url) as here:
            waits = await calling(here, model)
        assert [(await waits.answer(there))[0] for _ in range(2)] == [200, 200]
        assert (await waits.answer(there, "red"))[0] == 409
        assert of_tools(await waits.ended(there))[-1]["status"] == "succeeded"
    assert len(model.asked) == 2, "the turn went on once"


@promise("the result of a client's tool is taken once, at any engine, and goes on with the turn")
async def test_the_same_result_twice_is_taken_once_and_another_one_is_refused(engine: Engine, model: Model) -> None:
    waits = await calling(engine, model)
    both = await asyncio.gather(waits.answer(engine), waits.answer(engine))
    assert [status for status, _ in both] == [200, 200]
    await waits.ended(engine)
    assert (await waits.answer(engine))[0] == 200
    status, refused = await waits.answer(engine, "red")
    assert (status, refused["code"], refused["callStatus"]) == (409, "CLIENT_CALL_ANSWERED", "succeeded")
    assert (await waits.answer(engine, isError=True))[0] == 409
    nobody = f"/v1/turns/{waits.turn_id}/tool-calls/nobody/result"
    assert await engine.status("POST", nobody, json={"content": "x"}) == 404
    assert await engine.status("POST", waits.calls[0]["answerUrl"], json={"content": "a\0b"}) == 422
    assert len(model.asked) == 2, "the turn went on once"


@promise("the results of several calls of a client are taken together, or none of them")
async def test_several_results_are_taken_together_or_none_of_them(engine: Engine, model: Model) -> None:
    waits = await calling(engine, model, calls=2)
    ids = [each["correlationId"] for each in waits.calls]
    path = f"/v1/turns/{waits.turn_id}/tool-results"

    async def send(*results: tuple[str, str]) -> int:
        body = {"results": [{"toolCallId": call, "content": text} for call, text in results]}
        return await engine.status("POST", path, json=body)

    assert await send((ids[0], "red"), ("nobody", "blue")) == 404
    assert await send((ids[0], "red"), (ids[0], "blue")) == 409
    assert await waits.begun(engine, 2), "both wait still"
    model.will_say("Red and blue.")
    assert await send((ids[0], "red"), (ids[1], "blue")) == 200
    events = await waits.ended(engine)
    assert await send((ids[1], "blue")) == 200
    assert await send((ids[0], "red"), (ids[1], "green")) == 409
    assert [each["content"] for each in model.asked[1]["messages"][-2:]] == ["red", "blue"]
    assert [each.data["clientCalls"] for each in events if each.data.get("type") == "waiting"] == [2]


async def test_a_result_may_be_content_as_in_mcp_or_an_error(engine: Engine, model: Model) -> None:
    waits = await calling(engine, model, calls=2)
    content = [
        {"type": "text", "text": "seen", "annotations": {"audience": ["user"]}},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "resource_link", "uri": "https://example.com/a", "name": "a"},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "long"}},
    ]
    assert (await waits.answer(engine, [{"type": "image", "data": "?", "mimeType": "image/png"}]))[0] == 422
    _, shown = await waits.answer(engine, content)
    assert (shown["result"]["text"], len(shown["result"]["media"])) == ("seen\n[file:///b]\nlong", 1)
    assert shown["result"]["links"][0]["uri"] == "https://example.com/a"
    _, failed = await waits.answer(engine, "no page is open", call=1, isError=True)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "TOOL_EXECUTION_FAILED")
    await waits.ended(engine)
    assert "no page is open" in model.asked[1]["messages"][-1]["content"]
    assert (await engine.client.get(shown["result"]["media"][0]["url"])).content == b"hi"


@promise("no tool of a client has the name of another tool, and none changes what others are offered")
@pytest.mark.parametrize(
    ("tools", "field", "why"),
    [
        ([{**COLOUR, "name": OURS.name}], "clientTools.0.name", OURS.name),
        ([COLOUR, COLOUR], "clientTools.1.name", "two tools"),
        ([{**COLOUR, "name": "read_result"}], "clientTools.0.name", "read_result"),
        ([{**COLOUR, "name": "no spaces"}], "clientTools.0.name", "letters"),
        ([{**COLOUR, "inputSchema": {"type": "string"}}], "clientTools.0.inputSchema", "object"),
        ([{**COLOUR, "inputSchema": {"title": "a\0b"}}], "clientTools.0.inputSchema", "U+0000"),
        ([{**COLOUR, "description": "x" * 10_001}], "clientTools.0.description", "10001"),
        ([COLOUR] * 129, "clientTools", "128"),
    ],
)
async def test_a_tool_that_cannot_be_offered_is_refused_by_its_name(
    start: Start, redis_url: str, tools: list[Any], field: str, why: str
) -> None:
    publish(redis_url, OURS)
    async with start() as engine:
        await wait_until(engine.offers, what="the tool")
        answer = await engine.client.post("/v1/chat", json={"message": "Hi", "clientTools": tools})
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["field"] == field
        assert why in answer.json()["detail"]


@promise("a call of a client's tool that nobody answers, and one of a turn that is stopped, end as unknown")
async def test_nobody_answers_in_time_and_a_stop_withdraws_the_call(start: Start, model: Model) -> None:
    async with start(client_tool_timeout_seconds=1) as engine:
        waits = await calling(engine, model)
        events = await waits.ended(engine)
        assert of_tools(events)[-1]["error"]["code"] == "TIMEOUT"
        assert "within" not in model.asked[1]["messages"][-1]["content"]
        status, late = await waits.answer(engine)
        assert (status, late["callStatus"]) == (409, "unknown")
    async with start() as engine:
        waits = await calling(engine, model)
        assert await engine.status("POST", f"/v1/turns/{waits.turn_id}/cancel") == 202
        assert of_tools(await waits.ended(engine))[-1]["status"] == "unknown"
        assert (await waits.answer(engine))[0] == 409
        [effect] = (await engine.client.get(f"/v1/turns/{waits.turn_id}/effects")).json()["calls"]
        assert (effect["executionClass"], effect["status"]) == ("client", "unknown")
        # Another message in its place.
        waits = await calling(engine, model)
        fields = {"onOpenQuestion": "decline", "clientTools": [COLOUR]}
        await engine.begin("Never mind", waits.session_id, **fields)
        assert "sent another message" in of_tools(await waits.ended(engine))[-1]["error"]["message"]


@promise("an open call of a client outlives Redis' data and its engine, and its tools are offered again")
async def test_redis_is_wiped_and_the_engine_is_new(start: Start, redis_url: str, model: Model) -> None:
    async with start() as engine:
        waits = await calling(engine, model)
    with SyncRedis.from_url(redis_url) as redis:
        redis.flushall()
    async with start() as engine:
        model.will_call("pick_colour")
        assert (await waits.answer(engine))[0] == 200
        [again] = (await waits.begun(engine)).calls
        assert offered(model) == ["pick_colour"]
        assert (await engine.client.post(again["answerUrl"], json={"content": "red"})).is_success
        assert [each["status"] for each in of_tools(await waits.ended(engine))].count("succeeded") >= 1


@promise("a result of a client's tool is taken while Redis is away")
async def test_a_result_is_taken_while_redis_is_away(start: Start, model: Model, redis_url: str) -> None:
    async with start(redis_url="redis://127.0.0.1:1/0") as engine:
        waits = await calling(engine, model)
        assert (await waits.answer(engine))[0] == 200
        assert (await waits.ended(engine))[-1].data["reason"] == "stop"


@pytest.mark.parametrize("exposure", ["direct", "gateway", "search", "auto"])
@pytest.mark.parametrize("mode", ["native", "tool_use"])
async def test_the_model_is_offered_them_however_ours_are(
    start: Start, redis_url: str, model: Model, exposure: str, mode: str
) -> None:
    publish(redis_url, OURS)
    async with start(tool_exposure=exposure, tool_mode=mode) as engine:
        await wait_until(engine.offers, what="the tool")
        await engine.chat("Hi", clientTools=[COLOUR], tools={"servers": []})
        told = str(model.asked[-1])
        assert "pick_colour" in told
        assert OURS.name not in told, "a choice among ours is none among the client's"


@promise("nothing waits for a client while an engine of a release that does not know it shares the store")
async def test_none_are_taken_while_an_engine_of_an_earlier_release_lives(start: Start, postgres_url: str) -> None:
    async with start(database_url=postgres_url) as engine:
        with psycopg.connect(postgres_url) as connection:
            connection.execute("INSERT INTO engines VALUES ('old', 1, '0.1.0', 0)")
        body = {"message": "Hi", "clientTools": [COLOUR]}

        async def refused() -> bool:
            return await engine.status("POST", "/v1/chat", json=body) == 503

        await wait_until(refused, what="the refusal")
        answer = await engine.client.post("/v1/chat", json=body)
        assert (answer.json()["code"], answer.headers["x-should-retry"]) == ("CLIENT_TOOLS_NOT_NOW", "true")
        assert (await engine.chat("Hi"))[-1].name == "done"
