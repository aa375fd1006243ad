"""Requests that clients repeat, over HTTP at two engines: with a key, and as the SDKs do."""

from dataclasses import dataclass
from typing import Any

import pytest

from dialog_engine.facades.responses.ids import approval_id
from dialog_engine.identity.api_keys import add_key, revoke_key
from tests.integration.engines import Engine, Event, Model, Start, publish
from tests.integration.test_approvals import DELETE
from tests.integration.test_client_tools import COLOUR
from tests.integration.test_http_problems import check
from tests.integration.test_queued_messages import hold, running
from tests.marks import exhaustive, promise
from tests.support.waiting import wait_until

CHAT, SESSIONS = "/v1/chat", "/v1/sessions"
HI = {"message": "Hi"}
KEY = {"Idempotency-Key": "k 1"}


def again(number: int) -> dict[str, str]:
    """What the SDKs of OpenAI and Anthropic send."""
    return {"x-stainless-retry-count": str(number)}


@dataclass
class Answer:
    turn_id: str
    events: list[Event]


async def chat(engine: Engine, headers: dict[str, str], **body: Any) -> Answer:
    async with engine.stream("POST", CHAT, json=HI | body, headers=headers) as stream:
        events = [event async for event in stream]
        return Answer(stream.response.headers["x-turn-id"], events)


async def begun(engine: Engine) -> int:
    return len((await engine.client.get(SESSIONS)).json()["sessions"])


@promise("a request with an Idempotency-Key begins one turn, however often and at whichever engine it is sent")
@pytest.mark.parametrize(
    "repeated",
    [pytest.param(KEY, marks=exhaustive("the contract of the store has the same for a key")), again(1)],
    ids=["key", "retry count"],
)
async def test_a_stream_that_was_cut_is_repeated_from_its_beginning_or_from_the_last_event(
    engines: tuple[Engine, Engine], model: Model, repeated: dict[str, str]
) -> None:
    here, there = engines
    model.held.clear()
    first = repeated if repeated is KEY else again(0)
    async with here.stream("POST", CHAT, json=HI, headers=first) as stream:
        seen = await stream.until("text")
        turn_id = stream.response.headers["x-turn-id"]
    async with there.stream("POST", CHAT, json=HI, headers=repeated) as stream:
        whole = [await anext(aiter(stream))]
        model.held.set()
        whole += [event async for event in stream]
        assert (stream.response.headers["x-turn-id"], whole[0].id, whole[-1].name) == (turn_id, "1-1", "done")
    assert "".join(each.data["delta"] for each in whole if each.name == "text") == "Hello"
    rest = await chat(here, repeated | {"Last-Event-ID": seen.id})
    assert rest.events == [each for each in whole if int(each.id[2:]) > int(seen.id[2:])]
    nothing = {"Last-Event-ID": whole[-1].id}
    ended = await there.client.post(CHAT, json=HI, headers=repeated | nothing)
    assert (ended.status_code, ended.headers["x-turn-id"]) == (204, turn_id)
    assert (len(model.asked), await begun(here)) == (1, 1)

    new = await chat(there, again(0) | nothing)
    assert (new.turn_id != turn_id, new.events[0].id) == (True, "1-1"), "the id of another turn is not its own"


@promise("a request with an Idempotency-Key begins one turn, however often and at whichever engine it is sent")
async def test_a_key_stands_for_one_request_and_the_field_is_named(
    engines: tuple[Engine, Engine], subtests: pytest.Subtests
) -> None:
    here, there = engines
    session_id = (await here.client.post(SESSIONS, headers=KEY)).json()["sessionId"]
    assert (await there.client.post(SESSIONS, headers=KEY)).json() == {"sessionId": session_id}
    turns, other = f"{SESSIONS}/{session_id}/turns", {"Idempotency-Key": "k2"}
    first = (await here.client.post(turns, json=HI, headers=other)).json()
    second = (await there.client.post(turns, json=HI, headers=other)).json()
    assert second | {"status": "running"} == first
    for path, body, key in (
        (CHAT, HI, KEY),
        (CHAT, HI, other),
        (turns, {"message": "Ho"}, other),
        (SESSIONS, {}, other),
    ):
        with subtests.test(path=path, key=key):
            answer = await there.client.post(path, json=body, headers=key)
            check(answer, 422, "IDEMPOTENCY_KEY_REUSED", "Idempotency-Key")
            assert answer.headers["x-should-retry"] == "false"
    for wrong in ("", "x" * 256, "tab\t.", "é"):
        with subtests.test(wrong=wrong):
            wrong_key = [(b"idempotency-key", wrong.encode())]
            for path in (CHAT, SESSIONS):
                answer = await there.client.post(path, json=HI, headers=wrong_key)
                check(answer, 422, "INVALID_REQUEST", "Idempotency-Key")
    assert await begun(here) == 1


async def test_a_message_that_is_sent_at_last_with_a_key_may_be_sent_again(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    model.held.clear()
    waiting = await hold(here, *await running(here), "Next")
    sends = f"/v1/turns/{waiting}/send"
    assert (await here.client.post(sends, headers=KEY)).json()["status"] == "running"
    repeated = await there.client.post(sends, headers=KEY)
    assert (repeated.status_code, repeated.json()["turnId"], repeated.json()["status"]) == (202, waiting, "running")
    check(await there.client.post(sends), 409, "TURN_STARTED")
    check(await there.client.post(f"{sends}?stop=true", headers=KEY), 422, "IDEMPOTENCY_KEY_REUSED")


async def test_a_request_that_was_refused_is_no_request_before(engines: tuple[Engine, Engine], model: Model) -> None:
    here, there = engines
    model.held.clear()
    session_id, turn_id = await running(here)
    refused = await there.client.post(CHAT, json=HI | {"sessionId": session_id}, headers=KEY)
    check(refused, 409, "TURN_RUNNING")
    assert refused.headers["x-should-retry"] == "false"
    model.held.set()
    await here.events("GET", f"/v1/turns/{turn_id}/events")
    assert (await chat(here, KEY, sessionId=session_id)).turn_id != turn_id


@promise("a request that is repeated is answered to its subject only, and also when its limits are reached")
async def test_a_repetition_counts_in_no_limit_and_is_for_its_subject_and_its_valid_keys_only(
    start: Start, tmp_path: Any
) -> None:
    file = tmp_path / "keys"
    entry, stolen = add_key(file, "ann", ["user"], None)
    ann, bob = (add_key(file, subject, ["user"], None)[1] for subject in ("ann", "bob"))
    async with start(api_keys_file=file, subject_tokens_per_day=5) as engine:
        sent = {name: KEY | {"authorization": f"Bearer {key}"} for name, key in (("s", stolen), ("a", ann), ("b", bob))}
        first = await chat(engine, sent["s"])
        assert [(await chat(engine, sent[name])).turn_id for name in ("a", "s")] == [first.turn_id] * 2
        assert (await chat(engine, sent["b"])).turn_id != first.turn_id
        used_up = await engine.client.post(CHAT, json=HI, headers=sent["a"] | {"Idempotency-Key": "new"})
        check(used_up, 429, "LIMIT_EXCEEDED")
        assert used_up.headers["x-should-retry"] == "true"
        assert revoke_key(file, entry.id)

        async def refused() -> bool:
            return (await engine.client.post(CHAT, json=HI, headers=sent["s"])).status_code == 401

        await wait_until(refused, what="the end of the key")


def answers(way: str, turn_id: str, call: dict[str, Any], model: str) -> tuple[str, *tuple[Any, ...]]:
    """A way to answer a call: the path, what refuses it or is its result, and what says the opposite of that."""
    called, asked, both = call["correlationId"], call.get("hash", ""), ("teal", "red")
    match way:
        case "approval":
            bodies: Any = {"decision": "refuse"}, {"decision": "approve", "hash": asked}
            return f"/v1/turns/{turn_id}/approvals/{called}", *bodies
        case "result":
            bodies = ({"content": each} for each in both)
            return f"/v1/turns/{turn_id}/tool-calls/{called}/result", *bodies
        case "results":
            bodies = ({"results": [{"toolCallId": called, "content": each}]} for each in both)
            return f"/v1/turns/{turn_id}/tool-results", *bodies
        case "chat completions":
            bodies = ([{"role": "tool", "tool_call_id": called, "content": each}] for each in both)
            return "/v1/chat/completions", *({"model": model, "messages": each} for each in bodies)
        case "responses: approval":
            item = {"type": "mcp_approval_response", "approval_request_id": approval_id(turn_id, called, asked)}
            bodies = (item | {"approve": each} for each in (False, True))
            return "/v1/responses", *({"model": model, "input": [each]} for each in bodies)
        case "responses: result":
            bodies = ({"type": "function_call_output", "call_id": called, "output": each} for each in both)
            return "/v1/responses", *({"model": model, "input": [each]} for each in bodies)
        case "ai sdk: approval":
            bodies = ({"id": f"{called}:{asked}", "approved": each} for each in (False, True))
            parts: Any = ({"state": "approval-responded", "approval": each} for each in bodies)
        case _:
            parts = ({"state": "output-available", "toolCallId": call["toolCallId"], "output": each} for each in both)
    said = ({"id": turn_id, "role": "assistant", "parts": [{"type": "dynamic-tool"} | each]} for each in parts)
    return "/v1/ai-sdk/chat", *({"id": "chat", "trigger": "submit-message", "messages": [each]} for each in said)


APPROVALS = ["approval", "responses: approval", "ai sdk: approval"]
RESULTS = ["result", "results", "chat completions", "responses: result", "ai sdk: result"]


@promise("the Idempotency-Key of an answer to a call stands for that answer, natively and in every protocol")
@pytest.mark.parametrize("way", APPROVALS + RESULTS)
async def test_a_key_of_an_answer_stands_for_that_answer_and_for_no_question(
    engines: tuple[Engine, Engine], redis_url: str, model: Model, way: str
) -> None:
    here, there = engines
    publish(redis_url, DELETE)
    for each in engines:
        await wait_until(each.offers, what="the tool")
    await chat(here, KEY)
    model.will_call(DELETE.name if way in APPROVALS else "pick_colour")
    turn_id = (await here.begin("Go on", clientTools=[COLOUR]))["turnId"]
    kind = "approvals" if way in APPROVALS else "clientCalls"

    async def pending() -> list[Any]:
        return (await here.client.get("/v1/me/pending")).json()[kind]

    [call] = await wait_until(pending, 30, what="the call")
    name = (await here.client.get("/v1/models")).json()["data"][0]["id"]
    path, body, opposite = answers(way, turn_id, call, name)

    async def post(engine: Engine, path: str, body: Any, key: str) -> tuple[int, str]:
        """The status and the turn of the answer, or what it says of the key."""
        headers = {"Idempotency-Key": key, "accept": "application/json"}
        answer = await engine.client.post(path, json=body, headers=headers)
        refused = answer.status_code == 422 and "Idempotency-Key was used" in answer.text
        return answer.status_code, "refused" if refused else answer.headers["x-turn-id"]

    assert await post(there, path, body, KEY["Idempotency-Key"]) == (422, "refused"), "the key of a question"
    assert len(await pending()) == 1
    for key in "answer", "given before":
        assert [await post(each, path, body, key) for each in engines] == [(200, turn_id)] * 2
        assert await post(there, path, opposite, key) == (422, "refused")
        assert await post(here, CHAT, HI, key) == (422, "refused")
    assert await begun(here) == 2
