"""Requests that clients repeat, over HTTP at two engines: with a key, and as the SDKs do."""

from dataclasses import dataclass
from typing import Any

import pytest

from dialog_engine.identity.api_keys import add_key, revoke_key
from tests.integration.engines import Engine, Event, Model, Start
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
    model.held.set()
    whole = await chat(there, repeated)
    assert (whole.turn_id, whole.events[0].id, whole.events[-1].name) == (turn_id, "1-1", "done")
    assert "".join(each.data["delta"] for each in whole.events if each.name == "text") == "Hello"
    rest = await chat(here, repeated | {"Last-Event-ID": seen.id})
    assert rest.events == [each for each in whole.events if int(each.id[2:]) > int(seen.id[2:])]
    nothing = {"Last-Event-ID": whole.events[-1].id}
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
