"""Chat Completions and Models, used by the unmodified package `openai`, against two engines."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from tests.integration.engines import Engine, Model, running_engine, settings
from tests.integration.test_encryption import demo_servers
from tests.marks import promise
from tests.support.processes import ROOT
from tests.support.waiting import wait_until
from tests.support.working import working

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 20).decode()


def client_of(engine: Engine, api_key: str = "any", **headers: str) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{engine.url}/v1",
        api_key=api_key,
        default_headers=headers,
        http_client=DefaultAsyncHttpxClient(trust_env=False, verify=False),
    )


@pytest.fixture
async def clients(engines: tuple[Engine, Engine]) -> AsyncGenerator[tuple[AsyncOpenAI, AsyncOpenAI]]:
    here, there = map(client_of, engines)
    async with here, there:
        yield here, there


async def model_of(client: AsyncOpenAI) -> str:
    return (await client.models.list()).data[0].id


async def read(stream: Any) -> tuple[str, str, list[ChatCompletionChunk]]:
    """The answer, what was reasoned, and the chunks of a stream, to its end."""
    chunks: list[ChatCompletionChunk] = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    reasoned = "".join(str((delta.model_extra or {}).get("reasoning_content", "")) for delta in deltas)
    return "".join(delta.content or "" for delta in deltas), reasoned, chunks


def user(text: str) -> ChatCompletionMessageParam:
    return {"role": "user", "content": text}


def picture(url: str) -> Any:
    return {
        "role": "user",
        "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": url}}],
    }


def answered(text: str) -> ChatCompletionMessageParam:
    return {"role": "assistant", "content": text}


def sent(model: Model, request: int = -1) -> list[tuple[str, Any]]:
    """The conversation that the model was asked last, without our own instructions."""
    messages = model.asked[request]["messages"]
    return [(each["role"], each["content"]) for each in messages if each["role"] != "system"]


@promise("a conversation that a client sends again goes on where it was, however the client trims it")
async def test_a_conversation_goes_on_at_any_engine_and_a_changed_question_is_another_branch(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = clients
    name = await model_of(here)
    headers = {"X-Conversation-Id": "chat 1"}
    model.will_say("A cat.")
    stream = await here.chat.completions.create(
        model=name, messages=[user("What is it?")], stream=True, extra_headers=headers
    )
    answer, _, chunks = await read(stream)
    assert answer == "A cat."
    assert {(chunk.id, chunk.created, chunk.model) for chunk in chunks} == {(chunks[0].id, chunks[0].created, name)}

    model.will_say("Two years.")
    history = [
        {"role": "system", "content": "Be brief."},
        user("What  is it?\n"),
        answered("Something else."),
        user("How old?"),
    ]
    raw = await there.chat.completions.with_raw_response.create(model=name, messages=history, extra_headers=headers)  # type: ignore[arg-type]
    completion = raw.parse()
    assert completion.choices[0].message.content == "Two years."
    assert completion.choices[0].finish_reason == "stop"
    assert sent(model) == [("user", "What is it?"), ("assistant", "A cat."), ("user", "How old?")]
    assert model.asked[-1]["messages"][0]["content"].endswith("Be brief.")

    session = raw.headers["x-session-id"]
    changed = [user("What is it?"), answered("A cat."), user("How heavy?")]
    await here.chat.completions.create(model=name, messages=changed, extra_headers={"X-Session-Id": session})
    assert sent(model) == [("user", "What is it?"), ("assistant", "A cat."), ("user", "How heavy?")]
    unknown = [user("Who are you?"), answered("Nobody."), user("Why?")]
    await there.chat.completions.create(model=name, messages=unknown, extra_headers=headers)
    assert sent(model) == [("user", "Who are you?"), ("assistant", "Nobody."), ("user", "Why?")]
    [listed] = (await engines[0].client.get("/v1/sessions")).json()["sessions"]
    assert listed["sessionId"] == session


@promise("a conversation without a name is nobody's but its client's: not listed, and deleted after a time")
async def test_a_conversation_without_a_name_goes_on_and_is_not_listed_but_exported(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = clients
    name = await model_of(here)
    first = await here.chat.completions.with_raw_response.create(model=name, messages=[user("Hi")])
    history = [user("Hi"), answered(first.parse().choices[0].message.content or ""), user("Again")]
    second = await there.chat.completions.with_raw_response.create(model=name, messages=history)
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    history[1] = answered("Something that was never said")
    third = await there.chat.completions.with_raw_response.create(model=name, messages=history)
    assert third.headers["x-session-id"] != first.headers["x-session-id"]
    assert sent(model) == [("user", "Hi"), ("assistant", "Something that was never said"), ("user", "Again")]

    assert (await engines[0].client.get("/v1/sessions")).json()["sessions"] == []
    exported = [json.loads(line) for line in (await engines[1].client.get("/v1/me/data")).text.splitlines()]
    before = [each["before"] for line in exported for each in line.get("messages", []) if "before" in each]
    assert [message["content"] for message in before[0]] == ["Hi", "Something that was never said"]


async def test_sampling_and_the_form_of_the_answer_reach_the_model(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], model: Model
) -> None:
    wanted: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["END"], "presence_penalty": 0.1}
    wanted |= {"frequency_penalty": 0.2, "max_tokens": 50, "response_format": {"type": "json_object"}}
    await clients[0].chat.completions.create(
        model=await model_of(clients[0]), messages=[user("Hi")], extra_body={"own": 1}, **wanted
    )
    asked = model.asked[-1]
    assert asked.pop("max_completion_tokens", asked.get("max_tokens")) == 50
    assert all(asked[name] == value for name, value in wanted.items() if name != "max_tokens")


async def test_an_image_of_the_user_reaches_the_model_and_stays_in_the_conversation(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = clients
    name = await model_of(here)
    url = f"data:image/png;base64,{PNG}"
    image = {
        "role": "user",
        "content": [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}],
    }
    headers = {"X-Session-Id": "pictures"}
    raw = await here.chat.completions.with_raw_response.create(model=name, messages=[image], extra_headers=headers)  # type: ignore[list-item]
    assert sent(model) == [("user", image["content"])]
    history: Any = [image, answered("Hello"), user("And?")]
    await there.chat.completions.create(model=name, messages=history, extra_headers=headers)
    assert sent(model)[0] == ("user", image["content"])
    session = raw.headers["x-session-id"]
    [question, *_] = (await engines[1].client.get(f"/v1/sessions/{session}/messages")).json()["messages"]
    [shown] = question["images"]
    data = (await engines[1].client.get(shown["url"])).content
    assert (base64.b64encode(data).decode(), shown["mimeType"]) == (PNG, "image/png")
    assert PNG in (await engines[1].client.get("/v1/me/data")).text


@promise("what a request brings reaches the model in every round, at any engine, and whatever waits before it")
async def test_an_answer_that_is_given_once_more_natively_has_all_that_its_request_brought(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = clients[0], engines[1]
    said: Any = [{"role": "system", "content": "Be brief."}, user("Who are you?"), answered("Nobody.")]
    raw = await here.chat.completions.with_raw_response.create(
        model=await model_of(here),
        messages=[*said, picture(f"data:image/png;base64,{PNG}")],
        temperature=0.5,
        extra_headers={"X-Session-Id": "again"},
    )
    again = {"sessionId": raw.headers["x-session-id"], "regenerateOf": raw.headers["x-turn-id"]}
    for _ in range(2):
        [*_, done] = await there.events("POST", "/v1/chat", json=again)
        again["regenerateOf"] = done.data["turnId"]
    first, *others = model.asked
    assert first["temperature"] == 0.5
    assert PNG in str(first)
    assert [each["messages"] for each in others] == [first["messages"]] * 2
    assert {each["temperature"] for each in others} == {0.5}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}, {"role": "moderator"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
        ({"messages": [picture("https://a.b/c.png")]}, "messages[0].content[1].image_url.url"),
        ({"messages": [picture("data:image/png;base64,AAAA")]}, "messages[0].content[1].image_url.url"),
        ({"model": 3}, "model"),
    ],
)  # fmt: skip
async def test_what_cannot_be_honoured_is_refused_with_its_field(
    engine: Engine, body: dict[str, Any], param: str
) -> None:
    async with client_of(engine) as client:
        wanted: Any = {"model": await model_of(client), "messages": [user("Hi")], **body}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**wanted)
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


async def test_errors_have_the_form_that_clients_read(tmp_path: Path, redis_url: str, model: Model) -> None:
    configured = settings(tmp_path, redis_url, model.url, api_keys="ann:a-key-of-ann-123456", subject_max_streams=1)
    async with running_engine(configured) as engine:
        async with client_of(engine, "a-key-of-eve-123456") as eve:
            with pytest.raises(openai.AuthenticationError) as stranger:
                await eve.models.list()
            assert stranger.value.code == "invalid_api_key"
        async with client_of(engine, "a-key-of-ann-123456") as ann:
            name = await model_of(ann)
            with pytest.raises(openai.NotFoundError) as unknown:
                await ann.chat.completions.create(model="gpt-0", messages=[user("Hi")])
            assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
            with pytest.raises(openai.NotFoundError):
                await ann.models.retrieve("gpt-0")
            model.held.clear()
            stream = await ann.chat.completions.create(model=name, messages=[user("Hi")], stream=True)
            with pytest.raises(openai.RateLimitError) as busy:
                await ann.with_options(max_retries=0).chat.completions.create(model=name, messages=[user("Hi")])
            assert busy.value.code == "rate_limit_exceeded"
            model.held.set()
            await read(stream)


async def test_a_model_that_fails_is_an_error_in_the_stream_and_without_one(engine: Engine, model: Model) -> None:
    async with client_of(engine) as client:
        name = await model_of(client)
        model.replies = [[{"content": ""}], [{"content": ""}]] * 2
        stream = await client.chat.completions.create(model=name, messages=[user("Hi")], stream=True)
        with pytest.raises(openai.APIError) as failed:
            await read(stream)
        assert failed.value.code
        with pytest.raises(openai.InternalServerError) as plain:
            await client.chat.completions.create(model=name, messages=[user("Hi")])
        assert plain.value.code == failed.value.code
        assert plain.value.response.headers["x-should-retry"] == "false"


async def test_models_are_listed_in_both_forms_and_a_second_time_without_tools(engine: Engine, model: Model) -> None:
    async with client_of(engine) as client:
        listed = await client.models.list()
        names = [each.id for each in listed.data]
        own = (await engine.client.get("/v1/models")).json()["models"]
        assert names == [name for each in own for name in (each["name"], f"{each['name']}:plain")]
        assert (await client.models.retrieve(names[1])).id == names[1]


async def test_a_long_conversation_is_read_and_one_that_is_too_long_refused(engine: Engine, model: Model) -> None:
    async with client_of(engine) as client:
        history = [user("a" * 1_500_000), answered("Oh."), user("And?")]
        await client.chat.completions.create(model=await model_of(client), messages=history)
        assert sent(model) == [("user", "And?")], "as much as is configured"
        with pytest.raises(openai.APIStatusError) as refused:
            await client.chat.completions.create(model="m", messages=[user("a" * 20_000_000)])
    assert (refused.value.status_code, refused.value.code) == (413, "body_too_large")


async def test_a_question_behind_an_answer_that_is_written_waits_for_it(engine: Engine, model: Model) -> None:
    async with client_of(engine, **{"X-Session-Id": "busy"}) as client:
        name = await model_of(client)
        model.held.clear()
        first = await client.chat.completions.create(model=name, messages=[user("one")], stream=True)
        await wait_until(lambda: len(model.asked) == 1, what="the first question")
        history = [user("one"), answered("He"), user("two")]
        second = await client.chat.completions.create(model=name, messages=history, stream=True)
        await second.close()  # its client has nothing of the answer
        third = asyncio.create_task(client.chat.completions.create(model=name, messages=[*history, user("three")]))
        messages = f"/v1/sessions/{first.response.headers['x-session-id']}/messages"

        async def both_wait() -> bool:
            return len((await engine.client.get(messages)).json()["waiting"]) == 2

        await wait_until(both_wait, what="both questions to wait")
        model.held.set()
        assert (await read(first))[0] == "Hello"
        assert (await third).choices[0].message.content == "Hello"
    told = [("user", "one"), ("assistant", "Hello"), ("user", "two"), ("assistant", "Hello"), ("user", "three")]
    assert (sent(model, 1), sent(model)) == (told[:3], told)


@promise("a tool of ours stays here, whatever protocol its user speaks, and runs once")
async def test_our_tools_run_here_and_are_told_as_reasoning(tmp_path: Path, redis_url: str, model: Model) -> None:
    (tmp_path / "elsewhere").mkdir()
    configured = settings(tmp_path, redis_url, model.url)
    async with working(redis_url, demo_servers(tmp_path)), running_engine(configured) as engine:
        await wait_until(engine.offers, 30, what="the tools")
        async with client_of(engine) as client:
            name = await model_of(client)
            echo = {"name": "demo__echo", "arguments": '{"text":"x"}'}
            parallel = [{"index": n, "id": f"c{n}", "type": "function", "function": echo} for n in range(2)]
            model.replies.append([{"content": "One moment."}, {"tool_calls": parallel}])
            model.will_say("Done.")
            stream = await client.chat.completions.create(
                model=name,
                messages=[user("Do it")],
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"tool_steps": "details"},
            )
            answer, reasoned, chunks = await read(stream)
            assert answer == "One moment.\n\nDone."
            assert reasoned.count('demo__echo is called: {"text":"x"}\n') == 2
            assert reasoned.count("demo__echo succeeded") == 2
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.total_tokens == 20, "of both rounds"
            for plain in (
                {"model": f"{name}:plain"},
                {"tool_choice": "none"},
                {"messages": [user("### Task:\nName it")]},
            ):
                await client.chat.completions.create(**({"model": name, "messages": [user("Hi")]} | plain))  # type: ignore[call-overload]
                assert "tools" not in model.asked[-1], plain
        assert (await engine.client.get("/v1/sessions")).json()["sessions"] == []


@promise("a tool of ours stays here, whatever protocol its user speaks, and runs once")
async def test_a_call_that_needs_approval_keeps_the_stream_open_and_says_where_to_decide(
    tmp_path: Path, redis_url: str, model: Model
) -> None:
    (tmp_path / "elsewhere").mkdir()
    configured = settings(tmp_path, redis_url, model.url)
    async with working(redis_url, demo_servers(tmp_path)), running_engine(configured) as engine:
        await wait_until(engine.offers, 30, what="the tools")
        async with client_of(engine) as client:
            name = await model_of(client)
            model.will_call_with("demo__delete_everything", {"token": "t"})
            model.will_say("Then not.")
            create = client.chat.completions.create
            stream = await create(model=name, messages=[user("Delete it")], stream=True)
            said = ""
            async for chunk in stream:
                said += (chunk.choices[0].delta.model_extra or {}).get("reasoning_content", "")
                if "decide at " in said:
                    break
            path = said.partition("decide at ")[2].strip()
            refused = await engine.client.post(path, json={"decision": "refuse"})
            assert refused.status_code == 200, refused.text
            assert (await read(stream))[0] == "Then not."

            model.will_call_with("demo__delete_everything", {"token": "t"})
            waiting = await create(model=name, messages=[user("Delete it all")])
            assert "waits for you: decide at /v1/turns/" in (waiting.choices[0].message.content or "")


async def test_the_synchronous_client_reads_the_same(engine: Engine, model: Model) -> None:
    def used() -> tuple[str, str]:
        with OpenAI(
            base_url=f"{engine.url}/v1", api_key="any", http_client=DefaultHttpxClient(trust_env=False, verify=False)
        ) as client:
            name = client.models.list().data[0].id
            stream = client.chat.completions.create(model=name, messages=[user("Hi")], stream=True)
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
            whole = client.chat.completions.create(model=name, messages=[user("Hi")])
            return "".join(pieces), whole.choices[0].message.content or ""

    assert await asyncio.to_thread(used) == ("Hello", "Hello")


async def test_the_lines_of_the_documentation_work(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/clients.md").read_text()
    lines = page.partition("## Chat Completions")[2].partition("```python\n")[2].partition("```")[0]
    monkeypatch.setenv("CALLSTREAM_URL", engine.url)
    monkeypatch.setenv("CALLSTREAM_KEY", "any")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    await asyncio.to_thread(exec, lines, {})
    assert capsys.readouterr().out == "Hello"
