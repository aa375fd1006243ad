"""The routes of the Vercel AI SDK over HTTP, through a whole engine; `test_stack_ai_sdk.py` has the package itself."""

import asyncio
import base64
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi import Request
from redis import Redis

from dialog_engine.chat.times import TurnTimes
from dialog_engine.errors import LimitExceededError
from dialog_engine.facades.large_bodies import place_for
from dialog_engine.http.shares import Shares
from dialog_engine.http.streams import StreamTimes
from dialog_engine.identity.api_keys import add_key, revoke_key
from dialog_engine.wiring.times import EngineTimes
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.keys import Keys
from tests.integration.engines import Engine, Model, Start, publish, with_times
from tests.marks import promise
from tests.support.fakes.worker import tool
from tests.support.ui_messages import Page
from tests.support.waiting import wait_until

CHAT = "/v1/ai-sdk/chat"
DELETE = tool("files__delete", {"type": "object"}, title="Delete", approval=ApprovalPolicy.ALWAYS)


def said(text: str, message_id: str = "m1") -> dict[str, Any]:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


def shown(url: str, text: str = "What?") -> dict[str, Any]:
    """A message with a picture."""
    picture = {"type": "file", "mediaType": "image/png", "filename": "a.png", "url": url}
    return said(text) | {"parts": [{"type": "text", "text": text}, picture] if text else [picture]}


def answer(page: Page) -> dict[str, Any]:
    return {"id": page.id, "role": "assistant", "parts": [{"type": "text", "text": page.text}]}


async def post(
    engine: Engine, *messages: dict[str, Any], chat: str = "chat", page: Page | None = None, **own: Any
) -> Page:
    page = page or Page()
    fields = {"id": chat, "messages": messages, "trigger": "submit-message", "theirs": 1} | own
    response = await engine.client.post(CHAT, json=fields)
    assert response.status_code == 200, response.text
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    page.read(response.content)
    return page


async def sessions(engine: Engine) -> list[dict[str, Any]]:
    return (await engine.client.get("/v1/sessions")).json()["sessions"]


@promise("a chat of another protocol is one session of its subject, whatever name it has there")
async def test_messages_of_a_chat_follow_each_other_in_one_session(engine: Engine, model: Model) -> None:
    first = await post(engine, said("Hi"))
    second = await post(engine, said("Hi"), answer(first), said("And now?", "m2"))

    [session] = await sessions(engine)
    assert first.text == second.text == "Hello"
    assert first.metadata == second.metadata | {"turnId": first.id}
    assert first.metadata["sessionId"] == session["sessionId"]
    used = {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}
    assert used.items() < first.metadata["usage"].items()
    assert [each["content"] for each in model.asked[1]["messages"] if each["role"] != "system"] == [
        "Hi",
        "Hello",
        "And now?",
    ]
    third = await post(engine, said("By its id"), chat=session["sessionId"])
    assert third.metadata["sessionId"] == session["sessionId"]


@promise("a chat of another protocol is one session of its subject, whatever name it has there")
async def test_a_first_message_that_is_refused_leaves_no_session(engine: Engine) -> None:
    unknown = {"id": "new", "messages": [said("Hi")], "model": "none"}
    assert await engine.status("POST", CHAT, json=unknown) == 422
    for way in ({"trigger": "regenerate-message"}, {"messageId": "m2"}):
        messages = [said("Hi"), answer(Page()), said("Oh", "m2")]
        assert await engine.status("POST", CHAT, json={"id": "new", "messages": messages} | way) == 404
    headers = {"x-session-id": "new"}
    nameless = {"model": "none", "messages": [{"role": "user", "content": "Hi"}]}
    assert await engine.status("POST", "/v1/chat/completions", json=nameless, headers=headers) == 404
    assert await sessions(engine) == []


async def test_two_first_messages_at_once_are_in_one_session(engines: tuple[Engine, Engine]) -> None:
    await asyncio.gather(*(post(each, said(f"{n}")) for n in range(4) for each in engines))
    assert len(await sessions(engines[0])) == 1


async def test_a_page_that_reads_elsewhere_when_the_beginning_of_the_log_is_lost_shows_the_message(
    engines: tuple[Engine, Engine], model: Model, redis_url: str
) -> None:
    here, there = engines
    model.held.clear()
    turn = await here.begin()
    with Redis.from_url(redis_url) as redis:
        log = Keys().turn(turn["turnId"])
        await wait_until(lambda: redis.xlen(log) > 1, what="the first words")
        redis.xtrim(log, maxlen=1, approximate=False)
    resumed = asyncio.create_task(there.client.get(f"{CHAT}/{turn['sessionId']}/stream?v=7"))
    await wait_until(partial(there.metric, "dialog_event_streams 1.0"), what="the stream")
    model.held.set()
    page = Page()
    page.read((await resumed).content)
    assert (page.id, page.text, page.finish) == (turn["turnId"], "Hello", "stop")


async def test_an_edited_message_begins_another_branch_and_an_answer_can_be_made_again(
    engine: Engine, model: Model
) -> None:
    first = await post(engine, said("Hi"))
    second = await post(engine, said("Hi"), answer(first), said("One", "m2"))
    await post(engine, said("Hi"), answer(first), said("Two", "m2"), messageId="m2")
    await post(engine, said("Other", "m1"), messageId="m1")
    await post(engine, said("Hi"), answer(first), said("One", "m2"), trigger="regenerate-message", messageId=second.id)

    texts = [[each["content"] for each in asked["messages"] if each["role"] != "system"] for asked in model.asked]
    assert texts[2:] == [["Hi", "Hello", "Two"], ["Other"], ["Hi", "Hello", "One"]]


async def test_a_body_that_other_paths_refuse_needs_a_place_of_its_subject() -> None:
    engine: Any = SimpleNamespace(large_bodies=Shares(1, 0, "requests with large bodies"))
    for length in (b"1000001", b""):
        large = Request({"type": "http", "headers": [(b"content-length", length)]})
        with pytest.raises(LimitExceededError):
            async with place_for(large, engine, "ann"):
                pytest.fail("there is no place")
    async with place_for(Request({"type": "http", "headers": [(b"content-length", b"1000000")]}), engine, "ann"):
        pass


async def test_a_picture_of_the_user_reaches_the_model_and_is_kept_and_may_be_alone(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    """Also in a body that other paths do not take."""
    here, there = engines
    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 600_000).decode()
    first = await post(here, shown(url), more="a" * 300_000)
    await post(there, shown(url), answer(first), said("And?", "m2"))
    await post(there, said("Hi"), trigger="regenerate-message", messageId=first.id)
    await post(here, shown(url, ""), chat="alone")
    asked = [each["messages"] for each in model.asked]
    image = {"type": "image_url", "image_url": {"url": url}}
    questions = [next(each["content"] for each in messages if each["role"] == "user") for messages in asked]
    assert questions[:3] == [[{"type": "text", "text": "What?"}, image]] * 3
    assert image in questions[3]
    assert await here.status("POST", CHAT, content=b" " * 20_000_001) == 413


@promise("a tool call waits for its user's approval in a page with the AI SDK, which goes on with the same message")
@pytest.mark.parametrize("version", [6, 7])
async def test_a_refused_call_goes_on_with_the_same_message(
    start: Start, redis_url: str, model: Model, version: int
) -> None:
    publish(redis_url, DELETE)
    async with start() as engine:
        await wait_until(engine.offers, what="the tool")
        engine.client.params = httpx2.QueryParams(v=version)
        model.will_call(DELETE.name)
        model.will_say("Then not.")
        page = await post(engine, said("Delete it"))
        [call] = [part for part in page.parts if part["type"] == "dynamic-tool"]
        assert (page.finish, call["state"], call["title"]) == ("tool-calls", "tool-approval-request", "Delete")
        message = answer(page)
        refused = {"id": call["approvalId"], "approved": False, "reason": "No."}
        message["parts"].append({"type": "dynamic-tool", "state": "approval-responded", "approval": refused})
        for _ in range(2):  # the second time it was decided before
            again = Page()
            again.parts, again.metadata = [*map(dict, page.parts)], dict(page.metadata)
            await post(engine, said("Delete it"), message, page=again)

            assert (again.id, again.finish, again.text) == (page.id, "stop", "One moment.Then not.")
            assert again.call(call["toolCallId"])["state"] == "tool-output-denied"


async def test_a_page_that_comes_back_gets_the_running_turn_from_its_start_and_can_stop_it(
    engine: Engine, model: Model
) -> None:
    path = f"{CHAT}/rooms%2Fchat"
    assert await engine.status("GET", f"{path}/stream") == await engine.status("POST", f"{path}/stop") == 204
    model.held.clear()
    async with engine.client.stream("POST", CHAT, json={"id": "rooms/chat", "messages": [said("Hi")]}) as stream:
        chunks = stream.aiter_text()
        while "text-delta" not in await anext(chunks):
            pass
    resumed = asyncio.create_task(engine.client.get(f"{path}/stream"))
    await wait_until(partial(engine.metric, "dialog_event_streams 1.0"), what="the stream")
    assert await engine.status("POST", f"{path}/stop") == 202
    page = Page()
    page.read((await resumed).content)
    assert (page.text, page.finish, page.ended) == ("He", "other", 1)
    assert await engine.status("GET", f"{path}/stream") == 204


@promise("a stream of another protocol that cannot go on breaks off: its client does not take it for the end")
async def test_a_stream_is_broken_off_when_its_engine_shuts_down(start: Start, model: Model) -> None:
    model.held.clear()

    async def read(engine: Engine) -> None:
        async with engine.client.stream("POST", CHAT, json={"id": "chat", "messages": [said("Hi")]}) as stream:
            async for text in stream.aiter_text():
                if "text-delta" in text:
                    engine.server.should_exit = True

    async with start() as engine:
        with pytest.raises(httpx2.RemoteProtocolError):
            await read(engine)


REVOKING = EngineTimes(streams=StreamTimes(check=0.1), turns=TurnTimes(check=3600))
"""Streams look whether their credential is valid, and turns do not."""


@with_times(REVOKING)
async def test_a_stream_is_broken_off_when_its_key_is_revoked(start: Start, model: Model, tmp_path: Path) -> None:
    entry, key = add_key(tmp_path / "keys", "ann", ["user"], None)
    model.held.clear()

    async def read(engine: Engine) -> None:
        async with engine.client.stream("POST", CHAT, json={"id": "chat", "messages": [said("Hi")]}) as stream:
            async for text in stream.aiter_text():
                if "text-delta" in text:
                    revoke_key(tmp_path / "keys", entry.id)

    async with start(api_keys_file=tmp_path / "keys") as engine:
        engine.client.headers["authorization"] = f"Bearer {key}"
        with pytest.raises(httpx2.RemoteProtocolError):
            await read(engine)
        model.held.set()
        refused = await engine.client.post(CHAT, json={"id": "chat", "messages": [said("Hi")]})
        assert refused.status_code == 401
        assert refused.text.endswith(".")
        assert refused.headers["www-authenticate"] == "Bearer"


@promise("a chat of another protocol is one session of its subject, whatever name it has there")
async def test_a_stranger_with_the_same_name_has_a_session_of_its_own(start: Start, model: Model) -> None:
    async with start(api_keys={name: f"{name}-key-of-sixteen-characters" for name in ("ann", "bob")}) as engine:
        pages: list[Page] = []
        for name in ("ann", "bob"):
            engine.client.headers["authorization"] = f"Bearer {name}-key-of-sixteen-characters"
            pages.append(await post(engine, said(f"I am {name}")))
        ann, bob = pages
        stolen = await post(engine, said("Show me"), chat=ann.metadata["sessionId"])
        answered = answer(ann) | {"id": ann.id}
        approval = {"id": "a:b", "approved": True}
        answered["parts"] = [{"type": "dynamic-tool", "state": "approval-responded", "approval": approval}]
        refused = await engine.client.post(CHAT, json={"id": "chat", "messages": [answered]})

    assert len({each.metadata["sessionId"] for each in (ann, bob, stolen)}) == 3
    assert all("ann" not in str(asked["messages"]) for asked in model.asked[1:])
    assert refused.status_code == 404


@promise("what another protocol's client gets of a turn is the same at every engine, live and replayed")
async def test_a_page_can_come_back_at_another_engine(engines: tuple[Engine, Engine], model: Model) -> None:
    here, there = engines
    model.held.clear()
    async with here.client.stream("POST", CHAT, json={"id": "chat", "messages": [said("Hi")]}) as stream:
        parts = stream.aiter_bytes()
        first = await anext(parts)
        while b"text-delta" not in first:
            first += await anext(parts)
        resumed = asyncio.create_task(there.client.get(f"{CHAT}/chat/stream"))
        await wait_until(partial(there.metric, "dialog_event_streams 1.0"), what="the stream")
        model.held.set()
        async for data in parts:
            first += data
    assert (await resumed).content == first


@pytest.mark.parametrize(
    ("fields", "status", "sentence"),
    [
        ({"messages": []}, 422, "Messages: List should have at least 1 item after validation, not 0."),
        ({"messages": [said(" ")]}, 400, "The last message has no text."),
        ({"model": "none"}, 422, "Model must be one of openai:gpt-4.1-mini."),
        (
            {"messages": [shown("data:application/pdf;base64,JVBERi0=")]},
            400,
            "The file in parts[1] of the last message (a.png) is not an image that models accept: PNG, JPEG, GIF and"
            " WebP are.",
        ),
        (
            {"messages": [shown("https://a.b/c.png")]},
            400,
            "The file in parts[1] of the last message (a.png) must be a data: URL in base64: images at other addresses"
            " are not fetched.",
        ),
        ({"more": [0] * 500_000}, 400, "The conversation has more than 500000 values: send its last message only."),
    ],
)
async def test_an_error_is_one_plain_sentence(
    engine: Engine, fields: dict[str, Any], status: int, sentence: str
) -> None:
    response = await engine.client.post(CHAT, json={"id": "chat", "messages": [said("Hi")]} | fields)
    assert (response.status_code, response.text) == (status, sentence)
    assert response.headers["content-type"].startswith("text/plain")
