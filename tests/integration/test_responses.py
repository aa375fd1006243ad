"""The Responses API, used by the unmodified package `openai`, against two engines."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.integration.engines import Engine, Model, Start, running_engine, settings
from tests.integration.test_chat_completions import PNG, client_of, clients, model_of, sent
from tests.integration.test_encryption import demo_servers
from tests.marks import promise
from tests.support.processes import ROOT
from tests.support.waiting import wait_until
from tests.support.working import working

__all__ = ["clients"]


async def read(stream: Any) -> list[Any]:
    """The events of a stream, to its end. The package raises for most orders that are not those of the API."""
    events = [event async for event in stream]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 2**53
    return events


def types(response: Any) -> list[str]:
    return [item.type for item in response.output]


def known(response: Any) -> dict[str, Any]:
    """A response, without what the package makes of its texts."""
    items = [(item.id, item.type, getattr(item, "status", None)) for item in response.output]
    return response.model_dump(exclude={"output"}) | {"items": items, "text": response.output_text}


@promise("a response goes on where the one before it was, at any engine")
async def test_a_response_follows_another_one_at_any_engine_and_both_can_be_read(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = clients
    name = await model_of(here)
    model.will_say("A cat.")
    wanted: Any = {"metadata": {"a": "b"}, "instructions": "Be brief."}
    async with here.responses.stream(model=name, input="What is it?", **wanted) as stream:
        events = await read(stream)
        first = await stream.get_final_response()
    assert [event.type for event in events][:3] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert events[-1].type == "response.completed"
    assert (first.output_text, first.status, first.metadata, first.instructions) == (
        "A cat.",
        "completed",
        {"a": "b"},
        "Be brief.",
    )
    assert first.usage is not None
    assert first.usage.total_tokens == 10

    model.will_say("Two years.")
    second = await there.responses.create(model=name, input="How old?", previous_response_id=first.id)
    assert second.output_text == "Two years."
    assert sent(model) == [("user", "What is it?"), ("assistant", "A cat."), ("user", "How old?")]
    model.will_say("A big one.")
    other = await here.responses.create(model=name, input="How big?", previous_response_id=first.id)
    assert sent(model) == [("user", "What is it?"), ("assistant", "A cat."), ("user", "How big?")]

    item = {"type": "item_reference", "id": second.output[0].id}
    question = {"role": "user", "content": "Sure?"}
    await there.responses.create(model=name, input=[item, question])  # type: ignore[list-item]
    assert sent(model)[1:] == [
        ("assistant", "A cat."),
        ("user", "How old?"),
        ("assistant", "Two years."),
        ("user", "Sure?"),
    ]
    for client in clients:
        assert known(await client.responses.retrieve(first.id)) == known(first)
        assert (await client.responses.retrieve(other.id)).output_text == "A big one."
    [asked] = (await there.responses.input_items.list(first.id)).data
    assert asked.model_dump()["content"][0]["text"] == "What is it?"
    with pytest.raises(openai.BadRequestError):
        await there.responses.input_items.list(first.id, after="msg_1")
    with pytest.raises(openai.NotFoundError):
        await there.responses.create(model=name, input="How old?", previous_response_id=f"{first.id}_unknown")
    [listed] = (await engines[0].client.get("/v1/sessions")).json()["sessions"]
    assert listed["title"] == "What is it?"


async def test_a_conversation_that_a_client_names_is_one_session_at_every_engine(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], engines: tuple[Engine, Engine], model: Model
) -> None:
    name = await model_of(clients[0])
    asking = (client.responses.create(model=name, input="Hi", conversation="a chat", store=True) for client in clients)
    first, second = await asyncio.gather(*asking)
    assert first.conversation
    assert first.conversation.id == "a chat"
    assert first.id != second.id
    [listed] = (await engines[0].client.get("/v1/sessions")).json()["sessions"]
    own = f"conv_{listed['sessionId'].replace('-', '')}"
    third = await clients[0].responses.create(model=name, input="Hi", conversation=own)
    assert sent(model).count(("user", "Hi")) == 3
    assert third.output_text
    for unknown in (f"conv_{'0' * 32}", "conv_1"):
        with pytest.raises(openai.NotFoundError):
            await clients[0].responses.create(model=name, input="Hi", conversation=unknown)


async def test_what_a_client_sends_again_without_storing_goes_on_and_is_not_listed(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = clients
    name = await model_of(here)
    image: Any = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG}"}
    asked: Any = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, image]}
    first = await here.responses.create(model=name, input=[asked], store=False)
    again: Any = [asked, *(each.model_dump() for each in first.output), {"role": "user", "content": "Again"}]
    await there.responses.create(model=name, input=again, store=False)
    assert [text for role, text in sent(model) if role == "assistant"] == ["Hello"]
    assert sent(model)[0][1][1]["image_url"]["url"].endswith(PNG)
    unknown: Any = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "No."}, asked]
    await there.responses.create(model=name, input=unknown, store=False)
    assert sent(model)[:2] == [("user", "Who?"), ("assistant", "No.")]
    with pytest.raises(openai.NotFoundError):
        await here.responses.retrieve(first.id)
    assert (await engines[0].client.get("/v1/sessions")).json()["sessions"] == []


async def test_how_the_answer_is_to_be_reaches_the_model(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], model: Model
) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    form: Any = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    await clients[0].responses.create(
        model=await model_of(clients[0]),
        input="Hi",
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=50,
        reasoning={"effort": "low"},
        text=form,
        extra_body={"own": 1},
    )
    asked = model.asked[-1]
    assert asked.pop("max_completion_tokens", asked.get("max_tokens")) == 50
    assert (asked["temperature"], asked["top_p"], asked["reasoning_effort"]) == (0.5, 0.9, "low")
    assert asked["response_format"]["json_schema"] == {"name": "n", "schema": schema, "strict": True}


@promise("a response in the background is read later, from any event, and stopped at any engine")
async def test_a_response_in_the_background_is_read_from_any_event_and_stopped_at_any_engine(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], model: Model
) -> None:
    here, there = clients
    name = await model_of(here)
    model.held.clear()
    begun = await here.responses.create(model=name, input="Hi", background=True)
    assert (begun.status, begun.output) == ("in_progress", [])
    behind = await there.responses.create(model=name, input="And?", background=True, previous_response_id=begun.id)
    assert behind.status == "queued"
    assert (await here.responses.retrieve(behind.id)).status == "queued"
    model.held.set()
    whole = await read(await there.responses.retrieve(begun.id, stream=True))
    assert whole[-1].response.output_text == "Hello"
    for place in (0, len(whole) // 2, len(whole) - 2):
        after = whole[place].sequence_number
        rest = await read(await here.responses.retrieve(begun.id, stream=True, starting_after=after))
        assert [each.model_dump() for each in rest] == [each.model_dump() for each in whole[place + 1 :]]
    async with there.responses.stream(response_id=begun.id, starting_after=whole[3].sequence_number) as stream:
        assert (await stream.get_final_response()).output_text == "Hello"
    assert (await read(await there.responses.retrieve(behind.id, stream=True)))[-1].response.output_text == "Hello"

    model.held.clear()
    running = await here.responses.create(model=name, input="Hi", stream=True)
    created: Any = await anext(aiter(running))
    stopped = await there.responses.cancel(created.response.id)
    assert stopped.status == "cancelled"
    assert (await here.responses.cancel(created.response.id)).status == "cancelled"
    *_, last = await read(running)
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")


@promise("a response that is cancelled while it waits is read, followed and deleted like any other one")
async def test_a_response_that_is_cancelled_while_it_waits_is_kept_until_it_is_deleted(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], model: Model
) -> None:
    here, there = clients
    model.held.clear()
    wanted: Any = {"model": await model_of(here), "background": True, "metadata": {"a": "b"}}
    create: Any = here.responses.create
    running = await create(input="Hi", **wanted)
    waits = await create(input="And?", previous_response_id=running.id, **wanted)
    cancelled = await there.responses.cancel(waits.id)
    assert (cancelled.status, cancelled.metadata) == ("cancelled", {"a": "b"})
    assert known(await here.responses.retrieve(waits.id)) == known(cancelled)
    *_, last = await read(await here.responses.retrieve(waits.id, stream=True))
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert (await there.responses.input_items.list(waits.id)).data == [], "its question is forgotten"
    behind = await create(input="Then?", previous_response_id=waits.id, **wanted)
    assert (behind.status, behind.previous_response_id) == ("queued", waits.id)
    await there.responses.delete(waits.id)
    with pytest.raises(openai.NotFoundError):
        await here.responses.retrieve(waits.id)


async def test_a_response_is_forgotten_and_erased_where_it_is_all_of_its_session(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = clients
    name = await model_of(here)
    first = await here.responses.create(model=name, input="Hi")
    second = await there.responses.create(model=name, input="And?", previous_response_id=first.id)
    await there.responses.delete(first.id)
    for gone in (here.responses.retrieve(first.id), here.responses.delete(first.id), here.responses.cancel(first.id)):
        with pytest.raises(openai.NotFoundError):
            await gone
    with pytest.raises(openai.NotFoundError) as refused:
        await here.responses.create(model=name, input="And?", previous_response_id=first.id)
    assert refused.value.param == "previous_response_id"
    assert (await here.responses.retrieve(second.id)).output_text == "Hello"

    model.held.clear()
    alone = await here.responses.create(model=name, input="Alone", background=True)
    await there.responses.delete(alone.id)
    listed = (await engines[1].client.get("/v1/sessions")).json()["sessions"]
    assert [each["title"] for each in listed] == ["Hi"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"previous_response_id": f"resp_{'0' * 32}", "conversation": "c"}, "previous_response_id"),
        ({"conversation": "a\0b"}, "conversation"),
        ({"conversation": "a" * 201}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"metadata": {"a": "b" * 600}}, "metadata"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"role": "assistant", "content": "Hi"}]}, "input"),
        ({"input": " "}, "input"),
        ({"input": [{"role": "moderator", "content": "Hi"}]}, "input[0].role"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": [{"type": "input_file"}]}]},
            "input[0].output[0].type"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"input": [{"type": "mcp_approval_response", "approval_request_id": "1"}]}, "input[0].approval_request_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "a", "server_url": "https://a.b"}]}, "tools[0].server_url"),
        ({"tools": [{"type": "mcp", "server_label": "nobody"}]}, "tools[0].server_label"),
        ({"tools": [{"type": "mcp", "server_label": "a", "allowed_tools": 3}]}, "tools[0].allowed_tools"),
        ({"tools": [{"type": "mcp", "server_label": "a", "require_approval": 3}]}, "tools[0].require_approval"),
        ({"model": 3}, "model"),
    ],
)  # fmt: skip
async def test_what_cannot_be_honoured_is_refused_with_its_field(
    engine: Engine, body: dict[str, Any], param: str
) -> None:
    async with client_of(engine) as client:
        wanted: Any = {"model": await model_of(client), "input": "Hi", **body}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(**wanted)
    assert (refused.value.param, refused.value.type) == (param, "invalid_request_error")


async def test_strangers_read_nothing_and_a_model_that_fails_ends_the_response(
    tmp_path: Path, redis_url: str, model: Model
) -> None:
    keys = "ann:a-key-of-ann-123456,eve:a-key-of-eve-123456"
    configured = settings(tmp_path, redis_url, model.url, api_keys=keys)
    async with (
        running_engine(configured) as engine,
        client_of(engine, "a-key-of-ann-123456") as ann,
        client_of(engine, "a-key-of-eve-123456") as eve,
    ):
        name = await model_of(ann)
        own = await ann.responses.create(model=name, input="Hi")
        theirs: Any = {"type": "item_reference", "id": own.output[0].id}
        question: Any = {"role": "user", "content": "And?"}
        for request in (
            eve.responses.retrieve(own.id),
            eve.responses.cancel(own.id),
            eve.responses.delete(own.id),
            eve.responses.input_items.list(own.id),
            eve.responses.create(model=name, input="And?", previous_response_id=own.id),
            eve.responses.create(model=name, input=[theirs, question]),
        ):
            with pytest.raises(openai.NotFoundError):
                await request
        model.replies = [[{"content": ""}], [{"content": ""}]] * 2
        failed = await ann.responses.create(model=name, input="Hi")
        assert failed.status == "failed"
        assert failed.error is not None
        events = await read(await ann.responses.create(model=name, input="Hi", stream=True))
        assert events[-1].type == "response.failed"


async def test_whatever_becomes_of_a_request_its_place_among_the_streams_is_free_afterwards(
    start: Start, model: Model
) -> None:
    async with (
        start(api_keys={"ann": "a-key-of-ann-123456"}, subject_max_streams=1) as engine,
        client_of(engine, "a-key-of-ann-123456") as ann,
    ):
        ask = partial(ann.with_options(max_retries=0).responses.create, model=await model_of(ann), input="Hi")
        for _ in range(2):  # the second is a repetition of what has ended
            await ask(extra_headers={"Idempotency-Key": "once"})
        with pytest.raises(openai.BadRequestError):
            await ask(top_logprobs=1)
        await ask(background=True)
        await read(await ask(stream=True))
        await ask()


@promise("a call that needs approval is approved or refused by the next request, and runs once")
async def test_calls_are_items_and_those_that_need_approval_end_the_response(
    tmp_path: Path, redis_url: str, model: Model
) -> None:
    (tmp_path / "elsewhere").mkdir()
    configured = settings(tmp_path, redis_url, model.url)
    async with working(redis_url, demo_servers(tmp_path)), running_engine(configured) as engine:
        await wait_until(engine.offers, 30, what="the tools")
        async with client_of(engine) as client:
            name = await model_of(client)
            echo: Any = {"type": "mcp", "server_label": "demo", "allowed_tools": ["echo"], "require_approval": "never"}
            model.replies.append([{"content": "One moment."}, {"tool_calls": _calls("demo__echo", "demo__add")}])
            model.will_say("Done.")
            async with client.responses.stream(model=name, input="Do it", tools=[echo]) as stream:
                events = await read(stream)
                response: Any = await stream.get_final_response()
            listed, text, *both, last = response.output
            refused, called = sorted(both, key=lambda call: call.name)
            assert [each.name for each in listed.tools] == ["echo"]
            assert (text.phase, last.phase) == ("commentary", "final_answer")
            assert (called.server_label, called.name, called.output, called.status) == (
                "demo",
                "echo",
                "x",
                "completed",
            )
            assert (refused.status, refused.error.type) == ("failed", "mcp_tool_execution_error")
            assert response.output_text == "One moment.Done."
            names = [event.type for event in events]
            assert names.count("response.mcp_call.completed") == names.count("response.mcp_call.failed") == 1
            assert known(await client.responses.retrieve(response.id)) == known(response)

            strict: Any = echo | {"require_approval": "always"}
            model.replies.append([{"content": ""}, {"tool_calls": _calls("demo__echo", "demo__echo")}])
            waiting = await client.responses.create(model=name, input="Do it", tools=[strict])
            assert (waiting.status, types(waiting)[1:]) == ("completed", ["mcp_approval_request"] * 2)
            model.will_say("Once.")
            answers: Any = [
                {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": n == 0, "reason": "no"}
                for n, asked in enumerate(waiting.output[1:])
            ]
            said: Any = {"previous_response_id": waiting.id, "metadata": {"round": "2"}}
            async with client.responses.stream(model=name, input=answers, **said) as stream:
                await read(stream)
                after: Any = await stream.get_final_response()
            assert types(after) == ["mcp_call", "message"]
            assert after.output[0].approval_request_id == waiting.output[1].id
            assert (after.output_text, after.previous_response_id) == ("Once.", waiting.id)
            again = await client.responses.create(model=name, input=answers)
            assert (again.id, again.output_text, again.metadata) == (after.id, "Once.", {"round": "2"})
            assert [each.type for each in (await client.responses.input_items.list(after.id)).data] == [
                "mcp_approval_response"
            ]
            assert known(await client.responses.retrieve(waiting.id)) == known(waiting)
            nobody = {"type": "mcp", "server_label": "nobody"}
            for wrong, why in (
                ({"input": [*answers, {"role": "user", "content": "Hi"}]}, "goes on without it"),
                ({"input": "Hi", "tools": [nobody]}, "the servers are demo"),
            ):
                with pytest.raises(openai.BadRequestError, match=why):
                    await client.responses.create(**{"model": name} | wrong)  # type: ignore[call-overload]

            model.will_call_with("demo__delete_everything", {"token": "t"})
            stream = await client.responses.create(model=name, input="Delete it", stream=True)
            *_, end = await read(stream)
            assert types(end.response) == ["mcp_approval_request"]
            model.will_say("Hello")
            behind = await client.responses.create(model=name, input="Hi", previous_response_id=end.response.id)
            assert behind.output_text == "Hello", "what was open is declined"


def _calls(*names: str) -> list[dict[str, Any]]:
    return [
        {"index": n, "id": f"c{n}", "type": "function", "function": {"name": name, "arguments": '{"text":"x"}'}}
        for n, name in enumerate(names)
    ]


async def test_the_lines_of_the_documentation_work(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/clients.md").read_text()
    lines = page.partition("## Responses")[2].partition("```python\n")[2].partition("```")[0]
    monkeypatch.setenv("CALLSTREAM_URL", engine.url)
    monkeypatch.setenv("CALLSTREAM_KEY", "any")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    await asyncio.to_thread(exec, lines, {})
    assert capsys.readouterr().out == "HelloHello\n"
