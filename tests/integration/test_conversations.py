"""OpenAI's Conversations, used by the unmodified package `openai`, against two engines."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.integration.engines import SHORT_LEASES, Engine, Model, Start, running_engine, settings
from tests.integration.test_chat_completions import PNG, client_of, clients, model_of, sent
from tests.integration.test_encryption import demo_servers
from tests.marks import promise
from tests.support.engine_stores import DIALECTS
from tests.support.processes import ROOT
from tests.support.waiting import wait_until
from tests.support.working import working

__all__ = ["clients"]
UNANSWERED = ("assistant", "(There was no reply.)")
"""What the model is sent behind a message that nothing has answered."""


@pytest.fixture
async def engine(request: pytest.FixtureRequest, start: Start) -> AsyncGenerator[Engine]:
    dialect = getattr(request, "param", "sqlite")
    changes = {"database_url": request.getfixturevalue("postgres_url")} if dialect == "postgres" else {}
    async with start(**changes) as engine:
        yield engine


either_store = pytest.mark.parametrize("engine", DIALECTS, indirect=True)


@pytest.fixture
async def client(engine: Engine) -> AsyncGenerator[AsyncOpenAI]:
    async with client_of(engine) as client:
        yield client


def said(role: str, content: Any) -> Any:
    return {"type": "message", "role": role, "content": content}


def words(item: Any) -> str:
    """The text of a message; the type of anything else."""
    texts = [getattr(part, "text", "") for part in getattr(item, "content", [])]
    return "".join(texts) if item.type == "message" else item.type


async def listed(client: AsyncOpenAI, conversation: str, **how: Any) -> list[Any]:
    """All items, in as many pages as it takes."""
    return [item async for item in client.conversations.items.list(conversation, **how)]


@promise("a conversation has what clients add and what responses have, with the same ids, at any engine")
async def test_what_is_added_comes_before_the_next_question_and_stays_where_it_was(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = clients
    name = await model_of(here)
    begun = await here.conversations.create(
        metadata={"topic": "cats"},
        items=[said("developer", "Be brief."), said("user", "Hi"), said("assistant", "Yes?")],
    )
    assert (await there.conversations.retrieve(begun.id)).metadata == {"topic": "cats"}
    more = await there.conversations.items.create(begun.id, items=[said("user", "I have a cat.")])
    before = await listed(here, begun.id, order="asc")
    assert [words(each) for each in before] == ["Be brief.", "Hi", "Yes?", "I have a cat."]
    assert (more.first_id, more.last_id, more.has_more) == (before[-1].id, before[-1].id, False)

    model.will_say("Rita.")
    response = await there.responses.create(model=name, input="Name it", conversation=begun.id)
    assert sent(model) == [
        ("user", "Hi"),
        ("assistant", "Yes?"),
        ("user", "I have a cat."),
        UNANSWERED,
        ("user", "Name it"),
    ]
    assert "Be brief." in model.asked[-1]["messages"][0]["content"]
    await here.responses.create(model=name, input="Sure?", conversation=begun.id)
    assert "Be brief." in model.asked[-1]["messages"][0]["content"], "an instruction holds for all questions behind it"
    assert sent(model)[4:] == [("user", "Name it"), ("assistant", "Rita."), ("user", "Sure?")]

    after = await listed(there, begun.id, order="asc")
    assert [each.id for each in after[:4]] == [each.id for each in before]
    assert [words(each) for each in after[4:]] == ["Name it", "Rita.", "Sure?", "Hello"]
    assert after[5].id == response.output[0].id
    [asked] = (await here.responses.input_items.list(response.id)).data
    assert asked.id == after[4].id, "what was added is not the request's"
    for limit in (1, 3):
        assert [each.id for each in await listed(here, begun.id, limit=limit)] == [each.id for each in after[::-1]]
        assert await listed(here, begun.id, limit=limit, order="asc") == after
    for item in (before[3], after[6]):
        assert await there.conversations.items.retrieve(item.id, conversation_id=begun.id) == item
    messages = (await engines[0].client.get(f"/v1/sessions/{_session(begun.id)}/messages")).json()["messages"]
    assert [each["content"] for each in messages] == ["Name it", "Rita.", "Sure?", "Hello"]


def _session(conversation: str) -> str:
    found = conversation.removeprefix("conv_")
    return "-".join([found[:8], found[8:12], found[12:16], found[16:20], found[20:]])


async def test_every_answer_about_a_conversation_names_its_session(engine: Engine) -> None:
    question = {"items": [{"role": "user", "content": "Hi"}]}
    begun = await engine.client.post("/v1/conversations", json=question)
    [item] = (await engine.client.get(f"/v1/conversations/{begun.json()['id']}/items")).json()["data"]
    requests: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("POST", "/items", question),
        ("GET", "/items", None),
        ("GET", f"/items/{item['id']}", None),
        ("DELETE", f"/items/{item['id']}", None),
        ("DELETE", "", None),
    ]
    for method, rest, body in requests:
        answer = await engine.client.request(method, f"/v1/conversations/{begun.json()['id']}{rest}", json=body)
        assert answer.headers.get("x-session-id") == _session(begun.json()["id"]), (method, rest)
    assert begun.headers["x-session-id"] == _session(begun.json()["id"])


@either_store
async def test_a_conversation_is_described_again_and_erased(client: AsyncOpenAI, engine: Engine, model: Model) -> None:
    empty = await client.conversations.create()
    assert (empty.metadata, empty.object) == ({}, "conversation")
    assert empty.created_at > 1_700_000_000
    assert (await client.conversations.update(empty.id, metadata={"a": "1", "b": "2"})).metadata == {"a": "1", "b": "2"}
    assert (await client.conversations.update(empty.id, metadata=None)).metadata == {}
    assert await listed(client, empty.id) == []
    model.held.clear()
    name = await model_of(client)
    running = await client.responses.create(model=name, input="Hi", conversation=empty.id, background=True)
    gone = await client.conversations.delete(empty.id)
    assert (gone.id, gone.deleted) == (empty.id, True)
    for request in (
        client.conversations.retrieve(empty.id),
        client.conversations.update(empty.id, metadata={}),
        client.conversations.items.create(empty.id, items=[said("user", "Hi")]),
        client.conversations.items.list(empty.id),
        client.responses.retrieve(running.id),
    ):
        with pytest.raises(openai.NotFoundError) as refused:
            await request
        assert refused.value.type == "invalid_request_error"
    assert (await engine.client.get("/v1/sessions")).json()["sessions"] == []


@either_store
async def test_an_item_that_waits_can_be_deleted_and_one_of_a_turn_cannot(client: AsyncOpenAI, model: Model) -> None:
    name = await model_of(client)
    begun = await client.conversations.create(
        items=[said("user", "One"), said("system", "Shout."), said("user", "Two")]
    )
    newest, rule, oldest = await listed(client, begun.id)
    for item in (newest, rule):
        assert (await client.conversations.items.delete(item.id, conversation_id=begun.id)).id == begun.id
        with pytest.raises(openai.NotFoundError) as missing:
            await client.conversations.items.delete(item.id, conversation_id=begun.id)
        assert missing.value.code == "item_not_found"
    await client.responses.create(model=name, input="Hi", conversation=begun.id)
    assert sent(model) == [("user", "One"), UNANSWERED, ("user", "Hi")]
    assert "Shout." not in str(model.asked[-1])
    for item in (oldest, (await listed(client, begun.id))[0]):
        with pytest.raises(openai.ConflictError) as kept:
            await client.with_options(max_retries=0).conversations.items.delete(item.id, conversation_id=begun.id)
        assert "delete the conversation" in str(kept.value)
    assert [words(each) for each in await listed(client, begun.id)] == ["Hello", "Hi", "One"]


@either_store
async def test_what_comes_while_a_turn_runs_is_of_the_next_question_and_is_given_back_by_one_that_is_withdrawn(
    client: AsyncOpenAI, engine: Engine, model: Model
) -> None:
    name = await model_of(client)
    begun = await client.conversations.create()
    model.held.clear()
    first = await client.responses.create(model=name, input="One", conversation=begun.id, background=True)
    picture = said("user", [{"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG}"}])
    await client.conversations.items.create(begun.id, items=[picture, said("assistant", "A cat.")])
    second = await client.responses.create(model=name, input="Two", conversation=begun.id, background=True)
    assert second.status == "queued"
    assert [words(each) for each in await listed(client, begun.id, order="asc")] == ["One", "", "A cat.", "Two"]
    await client.responses.cancel(second.id)
    waiting = await listed(client, begun.id)
    assert [words(each) for each in waiting] == ["A cat.", "", "One"]
    model.held.set()
    await wait_until(lambda: _over(client, first.id), what="the end of the first turn")

    await client.responses.create(model=name, input="Three", conversation=begun.id)

    assert [text if role == "assistant" else "" for role, text in sent(model)] == ["", "Hello", "", "A cat.", ""]
    assert sent(model)[2][1][-1]["image_url"]["url"].endswith(PNG)
    shown: Any = (await listed(client, begun.id, include=["message.input_image.image_url"]))[3]
    assert shown.id == waiting[1].id
    assert (await engine.client.get(shown.content[-1].image_url)).content.startswith(b"\x89PNG")


async def _begun(client: Any, **how: Any) -> Any:
    return await client.responses.create(**how, background=True)


async def _over(client: AsyncOpenAI, response: str) -> bool:
    return (await client.responses.retrieve(response)).status == "completed"


async def test_a_repetition_adds_nothing(clients: tuple[AsyncOpenAI, AsyncOpenAI]) -> None:
    here, there = clients
    named: Any = {"extra_headers": {"Idempotency-Key": "k1"}}
    again: Any = {"extra_headers": {"x-stainless-retry-count": "1"}}
    first = await here.conversations.create(items=[said("user", "Hi")], **named)
    assert (await there.conversations.create(items=[said("user", "Hi")], **named)).id == first.id
    with pytest.raises(openai.UnprocessableEntityError):
        await there.conversations.create(items=[said("user", "Ho")], **named)
    added = await here.conversations.items.create(first.id, items=[said("user", "And?")])
    repeated = await there.conversations.items.create(first.id, items=[said("user", "And?")], **again)
    assert repeated == added
    await here.conversations.items.create(first.id, items=[said("user", "And?")])
    assert [words(each) for each in await listed(there, first.id)] == ["And?", "And?", "Hi"]


@promise(
    "what a client adds to a conversation is there once, whenever an engine is killed, and comes before one question"
)
@SHORT_LEASES
@pytest.mark.usefixtures("killed")
async def test_an_engine_is_killed_and_the_other_one_is_sent_the_same_again(
    start: Start, model: Model, postgres_url: str
) -> None:
    again: Any = {"extra_headers": {"x-stainless-retry-count": "1"}}
    async with start(database_url=postgres_url) as living, client_of(living) as there:
        async with start(database_url=postgres_url) as dying, client_of(dying) as here:
            begun = await here.conversations.create(items=[said("user", "Hi")])
            added = await here.conversations.items.create(begun.id, items=[said("user", "And?")])
            assert await there.conversations.items.create(begun.id, items=[said("user", "And?")], **again) == added
            question: Any = {"model": await model_of(here), "input": "Well?", "conversation": begun.id}
            model.held.clear()
            running = await _begun(here, **question)
            await wait_until(lambda: model.open == 1, what="the model's stream")
        model.held.set()
        joined = await _begun(there, **question, **again)
        assert joined.id == running.id
        await wait_until(lambda: _over(there, running.id), 30, what="the end of the turn")
        items = await listed(there, begun.id, order="asc")
    assert [words(each) for each in items] == ["Hi", "And?", "Well?", "Hello"]


async def test_what_cannot_be_added_is_refused_with_its_field(
    client: AsyncOpenAI, engine: Engine, subtests: pytest.Subtests
) -> None:
    begun = await client.conversations.create()
    elsewhere = [{"type": "input_image", "image_url": "https://a.b"}]
    refused: list[tuple[Any, str]] = [
        ({"items": [said("user", "Hi")] * 21}, "items"),
        ({"items": []}, "items"),
        ({"items": 3}, "items"),
        ({"items": [said("user", " ")]}, "items[0].content"),
        ({"items": [said("user", "a\0b")]}, "items[0].content"),
        ({"items": [said("user", [{"type": "input_file"}])]}, "items[0].content[0].type"),
        ({"items": [said("critic", "Hi")]}, "items[0].role"),
        ({"items": [{"type": "mcp_call", "id": "1"}]}, "items[0].type"),
        ({"items": [said("user", "Hi"), said("assistant", elsewhere)]}, "items[1].content[0].image_url"),
        ({"items": [said("user", "Hi")], "metadata": {"a": "b" * 600}}, "metadata"),
    ]
    for body, param in refused:
        with subtests.test(param=param):
            path = "" if "metadata" in body else f"/{begun.id}/items"
            answer = await engine.client.post(f"/v1/conversations{path}", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert await listed(client, begun.id) == []


async def test_what_waits_is_bounded(client: AsyncOpenAI, engine: Engine) -> None:
    begun = await client.conversations.create()
    hasty = client.with_options(max_retries=0)
    for _ in range(5):
        await client.conversations.items.create(begun.id, items=[said("user", "Hi")] * 20)
    with pytest.raises(openai.ConflictError) as full:
        await hasty.conversations.items.create(begun.id, items=[said("user", "Hi")])
    assert full.value.code == "too_many_added"
    other = await client.conversations.create(items=[said("system", "é" * 30_000)])
    with pytest.raises(openai.ConflictError):
        await hasty.conversations.items.create(other.id, items=[said("system", "é" * 30_000)])
    assert len(await listed(client, other.id)) == 1, "nothing of a refused request is kept"
    image = "iVBORw0KGgo" + "A" * 15_000_001
    url = {"type": "input_image", "image_url": f"data:image/png;base64,{image}"}
    await client.conversations.items.create(other.id, items=[said("user", [url])])
    answer = await engine.client.post("/v1/conversations", json={"items": [said("user", [url | {"more": image}])]})
    assert answer.status_code == 413
    huge = [said("user", "a" * 100_000) for _ in range(20)]
    long = await client.conversations.create(items=huge)
    page = await client.conversations.items.list(long.id, limit=100)
    assert (len(page.data), page.has_more) == (9, True), "a page has a megabyte at most"
    assert len(await listed(client, long.id, limit=100)) == 20


async def test_strangers_find_nothing(tmp_path: Path, redis_url: str, model: Model) -> None:
    keys = "ann:a-key-of-ann-123456,eve:a-key-of-eve-123456"
    async with (
        running_engine(settings(tmp_path, redis_url, model.url, api_keys=keys)) as engine,
        client_of(engine, "a-key-of-ann-123456") as ann,
        client_of(engine, "a-key-of-eve-123456") as eve,
    ):
        own = await ann.conversations.create(items=[said("user", "Secret")])
        theirs = await eve.conversations.create(items=[said("user", "Mine")])
        [item] = await listed(ann, own.id)
        name = await model_of(ann)
        for request in (
            eve.conversations.retrieve(own.id),
            eve.conversations.update(own.id, metadata={"a": "b"}),
            eve.conversations.delete(own.id),
            eve.conversations.items.create(own.id, items=[said("user", "Hi")]),
            eve.conversations.items.list(own.id),
            eve.conversations.items.retrieve(item.id, conversation_id=own.id),
            eve.conversations.items.retrieve(item.id, conversation_id=theirs.id),
            eve.conversations.items.delete(item.id, conversation_id=own.id),
            eve.conversations.items.delete(item.id, conversation_id=theirs.id),
            eve.responses.create(model=name, input="Hi", conversation=own.id),
            eve.conversations.retrieve("conv_%00"),
        ):
            with pytest.raises(openai.NotFoundError):
                await request
        for after in (item.id, "msg_1", "\0"):
            with pytest.raises(openai.BadRequestError) as refused:
                await eve.conversations.items.list(theirs.id, after=after)
            assert refused.value.param == "after"
        assert [words(each) for each in await listed(ann, own.id)] == ["Secret"]
        exported = (
            await engine.client.get("/v1/me/data", headers={"authorization": "Bearer a-key-of-eve-123456"})
        ).text
        assert "Mine" in exported
        assert "Secret" not in exported


async def test_calls_and_what_was_decided_about_them_are_items(tmp_path: Path, redis_url: str, model: Model) -> None:
    (tmp_path / "elsewhere").mkdir()
    async with (
        working(redis_url, demo_servers(tmp_path)),
        running_engine(settings(tmp_path, redis_url, model.url)) as engine,
        client_of(engine) as client,
    ):
        await wait_until(engine.offers, 30, what="the tools")
        name = await model_of(client)
        begun = await client.conversations.create()
        strict: Any = {"type": "mcp", "server_label": "demo", "allowed_tools": ["echo"], "require_approval": "always"}
        function = {"name": "demo__echo", "arguments": '{"text":"x"}'}
        calls = [{"index": n, "id": f"c{n}", "type": "function", "function": function} for n in range(2)]
        model.replies.append([{"content": "One moment."}, {"tool_calls": calls}])
        asked = await client.responses.create(model=name, input="Do it", tools=[strict], conversation=begun.id)
        waiting = await listed(client, begun.id, order="asc")
        assert [each.id for each in waiting[1:]] == [each.id for each in asked.output]
        answers: Any = [
            {"type": "mcp_approval_response", "approval_request_id": each.id, "approve": n == 0, "reason": "no"}
            for n, each in enumerate(asked.output[2:])
        ]
        model.will_say("Once.")
        after = await client.responses.create(model=name, input=answers)
        items = await listed(client, begun.id, order="asc")
        assert [each.type for each in items] == [
            "message",
            "mcp_list_tools",
            "message",
            "mcp_approval_request",
            "mcp_approval_response",
            "mcp_call",
            "mcp_approval_request",
            "mcp_approval_response",
            "message",
        ]
        ids = {each.id for each in items}
        assert {each.id for each in (*asked.output, *after.output)} <= ids
        for each in items:
            assert await client.conversations.items.retrieve(each.id, conversation_id=begun.id) == each
        assert [each.id for each in await listed(client, begun.id, limit=2)] == [each.id for each in items[::-1]]


async def test_functions_of_the_client_and_their_results_are_items(client: AsyncOpenAI, model: Model) -> None:
    name, begun = await model_of(client), await client.conversations.create()
    pick: Any = {"type": "function", "name": "pick", "parameters": {"type": "object", "properties": {}}}
    model.will_call("pick")
    waiting: Any = await client.responses.create(model=name, input="Hi", tools=[pick], conversation=begun.id)
    call = waiting.output[-1]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "teal"}
    await client.responses.create(model=name, input=[result])
    items = await listed(client, begun.id, order="asc")
    assert [words(each) for each in items] == ["Hi", "One moment.", "function_call", "function_call_output", "Hello"]
    assert (items[2].id, items[3].output) == (call.id, "teal")
    assert await client.conversations.items.retrieve(items[3].id, conversation_id=begun.id) == items[3]


async def test_the_lines_of_the_documentation_work(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/clients.md").read_text()
    lines = page.partition("## Conversations")[2].partition("```python\n")[2].partition("```")[0]
    monkeypatch.setenv("CALLSTREAM_URL", engine.url)
    monkeypatch.setenv("CALLSTREAM_KEY", "any")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    await asyncio.to_thread(exec, lines, {})
    assert capsys.readouterr().out == "Hello\nmessage message message\n"
