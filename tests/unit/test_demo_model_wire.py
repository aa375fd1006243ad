"""The demo model on the wire, seen by the official OpenAI client."""

import json
import sys
from collections.abc import AsyncGenerator, Generator
from typing import Any, cast

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError
from openai.types.chat import ChatCompletionChunk

from examples.demo_model.request import MODEL_ID
from tests.support.processes import Process

pytestmark = pytest.mark.anyio

Json = dict[str, Any]

TIME_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "time__get_current_time",
        "description": "Get current time",
        "parameters": {"type": "object", "properties": {"timezone": {"type": "string"}}, "required": ["timezone"]},
    },
}
QUESTION = "What time is it in Tokyo and in Paris?"


@pytest.fixture(scope="module")
def base_url() -> Generator[str]:
    """A demo model in a process of its own, which says where it listens as soon as it does."""
    process = Process([sys.executable, "-m", "examples.demo_model", "--port", "0", "--token-delay-ms", "0"])
    try:
        process.wait_ready(lambda: "/v1\n" in process.output())
        yield process.output().split(" on ")[-1].strip()
    finally:
        process.close()


@pytest.fixture
async def client(base_url: str) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        yield client


async def stream(client: AsyncOpenAI, content: object, **options: Any) -> list[ChatCompletionChunk]:
    messages = cast("Any", [{"role": "user", "content": content}])
    chunks = await client.chat.completions.create(model=MODEL_ID, messages=messages, stream=True, **options)
    return [chunk async for chunk in chunks]


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


async def test_text_is_streamed_in_small_pieces_from_the_role_to_the_usage(client: AsyncOpenAI) -> None:
    chunks = await stream(client, "Show me Markdown", stream_options={"include_usage": True})
    first, *_, last, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    assert text_of(chunks).startswith("*I am a scripted demo model, not an AI")
    assert max(len(choice.delta.content or "") for chunk in chunks for choice in chunk.choices) < 20
    assert last.choices[0].finish_reason == "stop"
    assert not usage.choices
    assert usage.usage
    assert usage.usage.completion_tokens == len(chunks) - 3
    assert len({chunk.id for chunk in chunks}) == 1


async def test_parallel_calls_come_in_fragments_that_take_turns(client: AsyncOpenAI) -> None:
    chunks = await stream(client, QUESTION, tools=[TIME_TOOL])
    parts = [part for chunk in chunks for choice in chunk.choices for part in choice.delta.tool_calls or ()]
    calls: dict[int, Json] = {}
    for part in parts:
        assert part.function
        call = calls.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
        call["arguments"] += part.function.arguments or ""
    assert [json.loads(call["arguments"])["timezone"] for call in calls.values()] == ["Asia/Tokyo", "Europe/Paris"]
    assert {call["name"] for call in calls.values()} == {"time__get_current_time"}
    assert len({call["id"] for call in calls.values()}) == 2
    assert [part.index for part in parts][2:6] == [0, 1, 0, 1]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_a_conversation_with_tools_ends_in_an_answer_from_the_results(client: AsyncOpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    ask: Any = client.chat.completions.create
    asked = (await ask(model=MODEL_ID, messages=messages, tools=[TIME_TOOL])).choices[0]
    assert asked.finish_reason == "tool_calls"
    messages.append(asked.message.model_dump(exclude_none=True))
    for call, time in zip(
        asked.message.tool_calls, ("2026-11-22T06:37:07+09:00", "2026-11-21T22:37:07+01:00"), strict=True
    ):
        zone = json.loads(call.function.arguments)["timezone"]
        result = json.dumps({"timezone": zone, "datetime": time})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = (await ask(model=MODEL_ID, messages=messages, tools=[TIME_TOOL])).choices[0]
    assert answer.finish_reason == "stop"
    assert "06:37" in answer.message.content
    assert "22:37" in answer.message.content


async def test_a_token_limit_cuts_the_answer_and_says_so(client: AsyncOpenAI) -> None:
    chunks = await stream(client, "Give me a long answer", max_completion_tokens=5)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len(chunks) == 1 + 5 + 1


CALL: Json = {"id": "c1", "type": "function", "function": {"name": "x", "arguments": "{}"}}
USER: Json = {"role": "user", "content": "hi"}
CALLED: Json = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: Json = {"role": "tool", "tool_call_id": "c1", "content": "ok"}

MUTE: Json = {"role": "assistant", "content": None}

BAD: list[tuple[str, Json, str]] = [
    ("no messages", {"messages": []}, "messages"),
    ("an unknown role", {"messages": [{"role": "robot", "content": "hi"}]}, "messages[0]"),
    ("a number for content", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("a tool without a name", {"messages": [USER], "tools": [{"function": {}}]}, "tools[0].function.name"),
    ("a choice of tool that is none", {"messages": [USER], "tool_choice": "maybe"}, "tool_choice"),
    ("a call without a result", {"messages": [USER, CALLED, USER]}, "messages[2]"),
    ("a call without a result at the end", {"messages": [USER, CALLED]}, "messages[2]"),
    ("a result without a call", {"messages": [USER, RESULT]}, "messages[1].tool_call_id"),
    ("two results of one call", {"messages": [USER, CALLED, RESULT, RESULT]}, "messages[3].tool_call_id"),
    ("an assistant message that says nothing", {"messages": [USER, MUTE]}, "messages[1].content"),
]


@pytest.mark.parametrize(("request_body", "field"), [pytest.param(body, field, id=name) for name, body, field in BAD])
async def test_a_bad_request_is_refused_with_the_name_of_the_field(
    client: AsyncOpenAI, request_body: Json, field: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        await client.post("/chat/completions", body={"model": MODEL_ID} | request_body, cast_to=object)
    assert refused.value.param == field
    assert field in refused.value.message


async def test_another_model_or_path_is_not_found(client: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError, match="gpt-x") as refused:
        await client.chat.completions.create(model="gpt-x", messages=cast("Any", [USER]))
    assert refused.value.code == "model_not_found"
    with pytest.raises(APIStatusError, match="Not Found: GET /v1/nothing"):
        await client.get("/nothing", cast_to=object)
