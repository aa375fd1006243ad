"""What a message asked for: which model answers and how it calls tools, for all of its turn, wherever that goes on."""

from typing import Any

from tests.integration.engines import Model, Start, publish
from tests.integration.test_approvals import requested
from tests.marks import promise
from tests.support.fakes.worker import tool
from tests.support.waiting import wait_until

CHOSEN = {"model": "openai:other", "toolMode": "tool_use"}


ALLOWING = {"openai_model": "usual", "allowed_models": "openai:other", "allow_tool_mode": True}


def asked_for(model: Model) -> list[str]:
    return [request["model"] for request in model.asked]


def described(request: dict[str, Any]) -> bool:
    """Whether tools are described in its prompt and not declared."""
    return "tools" not in request and "<tool_use>" in request["messages"][0]["content"]


@promise("a message may ask for a model and a tool mode that are allowed, and for no other")
async def test_the_chosen_model_answers_in_the_chosen_way_and_the_next_message_chooses_anew(
    start: Start, redis_url: str, model: Model
) -> None:
    publish(redis_url, tool("a__good"))
    async with start(**ALLOWING) as engine:
        await wait_until(engine.offers, what="the tool")
        listed = (await engine.client.get("/v1/models")).json()
        events = await engine.chat(**CHOSEN)
        await engine.chat(sessionId=events[0].data["sessionId"])

    assert {name: listed[name] for name in ("models", "toolModes")} == {
        "models": [
            {"name": "openai:usual", "label": "usual", "default": True},
            {"name": "openai:other", "label": "other", "default": False},
        ],
        "toolModes": ["auto", "native", "tool_use", "function_calls"],
    }
    assert asked_for(model) == ["other", "usual"]
    assert [described(request) for request in model.asked] == [True, False]
    assert events[-1].data["model"] == "openai:other"


@promise("a message may ask for a model and a tool mode that are allowed, and for no other")
async def test_what_is_not_allowed_is_refused_before_anything_begins(start: Start) -> None:
    async with start(openai_model="usual") as engine:
        for path in ("/v1/chat", "/v1/sessions/any/turns"):
            for field, value in CHOSEN.items():
                answer = await engine.client.post(path, json={"message": "Hi", field: value})
                assert (answer.status_code, answer.json()["code"]) == (422, "CHOICE_NOT_ALLOWED")
                assert [error["field"] for error in answer.json()["errors"]] == [field]
        assert "openai:usual" in (await engine.client.post("/v1/chat", json={"message": "Hi", **CHOSEN})).text
        assert (await engine.client.get("/v1/sessions")).json()["sessions"] == []
        models = (await engine.client.get("/v1/models")).json()
        assert ([each["name"] for each in models["models"]], models["toolModes"]) == (["openai:usual"], [])
        assert (await engine.chat(model="openai:usual"))[-1].data["reason"] == "stop"


@promise("a message may ask for a model and a tool mode that are allowed, and for no other")
async def test_a_message_that_waits_keeps_its_choice(start: Start, model: Model) -> None:
    async with start(**ALLOWING) as engine:
        model.held.clear()
        first = await engine.begin()
        await wait_until(lambda: model.open == 1, what="the model's stream")
        second = await engine.begin("Hi", first["sessionId"], onBusy="queue", **CHOSEN)
        assert second["status"] == "waiting"
        model.held.set()
        assert (await engine.events("GET", second["eventsUrl"]))[-1].data["model"] == "openai:other"


@promise("the choice holds for all of the turn, also after a restart and at another engine")
async def test_the_engine_that_adopts_a_turn_goes_on_with_its_choice(
    start: Start, redis_url: str, postgres_url: str, model: Model
) -> None:
    publish(redis_url, tool("a__good"))
    model.held.clear()
    async with start(**ALLOWING, database_url=postgres_url) as there:
        await wait_until(there.offers, what="the tool")
        async with start(**ALLOWING, database_url=postgres_url) as here:
            await wait_until(here.offers, what="the tool")
            turn = await here.begin(**CHOSEN)
            await wait_until(lambda: model.open == 1, what="the model's stream")
        await wait_until(lambda: len(model.asked) == 2, what="the other engine's request")
        model.held.set()
        events = await there.events("GET", turn["eventsUrl"])
    assert (events[-1].id.partition("-")[0], events[-1].data["model"]) == ("2", "openai:other")
    assert asked_for(model) == ["other", "other"]
    assert [described(request) for request in model.asked] == [True, True]


READ, NOW = tool("files__read"), tool("time__now")


def offered(model: Model) -> list[list[str]]:
    """The names of the tools in each request to the model."""
    return [[each["function"]["name"] for each in request.get("tools", ())] for request in model.asked]


@promise("a session and a message choose which tools may be used, and the choice goes with the turn to the worker")
async def test_the_tools_of_a_session_hold_for_its_messages_unless_one_says_otherwise(
    start: Start, redis_url: str, model: Model
) -> None:
    publish(redis_url, READ, NOW)
    only_files = {"servers": ["files"]}
    async with start() as engine:
        await wait_until(lambda: engine.offers(2), what="the tools")
        session = (await engine.client.post("/v1/sessions")).json()["sessionId"]
        path = f"/v1/sessions/{session}"
        for tools, answer in ((only_files, only_files), (None, None), (only_files, only_files)):
            changed = await engine.client.patch(path, json={"tools": tools})
            assert (changed.status_code, changed.json()) == (200, {"sessionId": session, "tools": answer})
        [listed] = (await engine.client.get("/v1/sessions")).json()["sessions"]
        assert listed["tools"] == only_files
        await engine.chat(sessionId=session)
        await engine.chat(sessionId=session, tools={"deny": ["files/*"]})
        await engine.chat(sessionId=session, tools={})

        model.held.clear()
        await engine.begin("Hi", session)
        await wait_until(lambda: model.open == 1, what="the model's stream")
        waiting = await engine.begin("Wait", session, onBusy="queue")
        assert (await engine.client.get(f"/v1/turns/{waiting['turnId']}")).json()["tools"] == only_files
        await engine.client.patch(path, json={"tools": None})
        model.will_call(READ.name, NOW.name)
        model.held.set()
        await wait_until(lambda: requested(redis_url), what="the request")
        [event] = requested(redis_url)
        assert (event["tool"], event["choice"]) == ("read", only_files)
        await engine.client.post(f"/v1/turns/{waiting['turnId']}/cancel")
    assert offered(model)[:5] == [[READ.name], [NOW.name], [READ.name, NOW.name], [READ.name], [READ.name]]


WRONG: dict[str, dict[str, Any]] = {
    "tools.servers": {"servers": "git"},
    "tools.servers.0": {"servers": [""]},
    "tools.allow.1": {"allow": ["git/*", "git"]},
    "tools.deny.0": {"deny": ["/x"]},
    "tools.deny": {"deny": ["a/b"] * 51},
    "tools.allow.0": {"allow": ["a/" + "b" * 199]},
    "tools.only": {"only": []},
}


@promise("a session and a message choose which tools may be used, and the choice goes with the turn to the worker")
async def test_a_wrong_choice_of_tools_is_refused_and_its_field_is_named(start: Start) -> None:
    async with start() as engine:
        session = (await engine.client.post("/v1/sessions")).json()["sessionId"]
        for field, tools in WRONG.items():
            for method, path in (("POST", "/v1/chat"), ("POST", f"/v1/sessions/{session}/turns")):
                answer = await engine.client.request(method, path, json={"message": "Hi", "tools": tools})
                assert (answer.status_code, [each["field"] for each in answer.json()["errors"]]) == (422, [field])
            answer = await engine.client.patch(f"/v1/sessions/{session}", json={"tools": tools})
            assert (answer.status_code, [each["field"] for each in answer.json()["errors"]]) == (422, [field])
        assert (await engine.client.patch(f"/v1/sessions/{session}", json={})).status_code == 422
        nobodys = await engine.client.patch("/v1/sessions/another", json={"tools": None})
        assert (nobodys.status_code, nobodys.json()["code"]) == (404, "SESSION_NOT_FOUND")


@promise("a tool that its server keeps from models is neither offered to one nor found nor run")
@promise("what servers say about their tools is data for the model: named, escaped, bounded")
async def test_a_model_gets_the_words_of_servers_whose_tools_it_may_use_and_no_tool_that_is_for_pages(
    start: Start, redis_url: str, model: Model
) -> None:
    hidden = tool("files__refresh", for_model=False)
    publish(redis_url, READ, hidden, NOW, instructions="Ask me first.")
    async with start() as engine:
        await wait_until(lambda: engine.offers(3), what="the tools")
        servers = (await engine.client.get("/v1/tools")).json()["servers"]
        shown = {each["name"]: each["forModel"] for server in servers for each in server["tools"]}
        model.will_call(hidden.name)
        events = await engine.chat(tools={"servers": ["files"]})
        refusal = next(event.data["error"] for event in events if event.data.get("status") == "failed")
    assert shown == {READ.name: True, hidden.name: False, NOW.name: True}
    assert offered(model) == [[READ.name]] * 2
    assert refusal["code"] == "TOOL_NOT_FOUND"
    assert hidden.name not in refusal["message"].removeprefix(f"there is no tool '{hidden.name}'")
    assert requested(redis_url) == []
    for request in model.asked:
        assert request["messages"][0]["content"].count('{"server":"files","notes":"Ask me first."}') == 1
        assert '"server":"time"' not in request["messages"][0]["content"]
