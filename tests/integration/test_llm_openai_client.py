"""The OpenAI client against a provider on a real connection: requests, answers and errors."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx2
import pytest
from msgspec.structs import replace

from dialog_engine.errors import LLMError, LLMOverloadedError, LLMRateLimitedError, LLMRequestError
from dialog_engine.llm.bounded_reading import bound_error
from dialog_engine.llm.openai_client import MAX_DESCRIPTION
from dialog_engine.llm.profiles import PROFILES
from dialog_engine.llm.provider import Timeouts
from dialog_engine.model import (
    ChatEvent,
    ChatRequest,
    FinishReason,
    StreamEnd,
    SystemMessage,
    TextDelta,
    ToolCallEvent,
    Usage,
)
from plugins_contract.catalog import ToolEntry
from tests.marks import promise
from tests.support.hello import HELLO_EVENTS, KEY, REQUEST, TURN
from tests.support.llm_clients import OpenAIModel
from tests.support.protocols import openai_sse as sse
from tests.support.scripted_provider import Exchange, Provider, answer, refusal, serving
from tests.support.waiting import wait_until

TOOL = ToolEntry(name="clock__now", server="clock", tool="now", input_schema={"type": "object", "properties": {}})

DONE = b"data: [DONE]\n\n"


def text(content: str, finish_reason: str | None = None) -> bytes:
    return sse({"choices": [{"delta": {"content": content}, "finish_reason": finish_reason}]})


HELLO = text("Hel") + text("lo") + text("", "stop") + DONE


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(HELLO))) as provider:
        yield provider


@pytest.fixture
async def client(provider: Provider) -> AsyncGenerator[OpenAIModel]:
    client = OpenAIModel(provider.url, KEY, "model", max_retries=0)
    yield client
    await client.aclose()


async def ask(client: OpenAIModel, request: ChatRequest = REQUEST) -> list[ChatEvent]:
    return [event async for event in await client.open(request)]


# --- What is sent ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["unknown field: tool_choice", "Tool choice is none, but model called a tool"])
async def test_a_provider_that_cannot_forbid_calls_is_offered_no_tools_for_a_last_answer(
    provider: Provider, client: OpenAIModel, words: str
) -> None:
    provider.scripts.insert(0, refusal(400, {"error": {"message": words}}))
    for answer_only in (True, True, False):
        assert await ask(client, ChatRequest(REQUEST.messages, TURN, (TOOL,), answer_only)) == HELLO_EVENTS
    assert [("tools" in each, each.get("tool_choice")) for each in provider.requests] == [
        (True, "none"),
        (False, None),
        (False, None),
        (True, None),
    ]


async def test_a_local_server_needs_no_key(provider: Provider) -> None:
    client = OpenAIModel(provider.url, None, "model", extra_body={"temperature": 0}, headers={"x-app": "1"})
    assert await ask(client) == HELLO_EVENTS
    assert provider.requests[0]["temperature"] == 0
    assert "x-app: 1" in provider.heads[0]
    await client.aclose()


@pytest.mark.parametrize(
    ("profile", "tried", "taken"),
    [("generic", "max_tokens", "max_completion_tokens"), ("openai", "max_completion_tokens", "max_tokens")],
)
async def test_the_bound_of_an_answer_has_its_other_name_where_one_is_refused(
    provider: Provider, profile: str, tried: str, taken: str
) -> None:
    complaint = f"Unsupported parameter: '{tried}' is not supported with this model. Use '{taken}' instead."
    provider.scripts.insert(0, refusal(400, {"error": {"message": complaint}}))
    client = OpenAIModel(provider.url, KEY, "model", max_retries=0, max_tokens=9, profile=PROFILES[profile])
    async with aclosing(client):
        for _ in range(2):
            assert await ask(client) == HELLO_EVENTS
    assert [body.get(tried) for body in provider.requests] == [9, None, None]
    assert [body.get(taken) for body in provider.requests] == [None, 9, 9]


@promise("a tool with a long description is offered to models whose provider bounds descriptions")
async def test_long_descriptions_are_in_the_instructions_where_they_are_refused(
    provider: Provider, client: OpenAIModel
) -> None:
    about = "".join(f"{number} " for number in range(1000))
    tools = (replace(TOOL, description=about), TOOL)
    complaint = (
        "Invalid 'tools[0].function.description': string too long. Expected a string with maximum length 1024, but got"
        f" a string with length {len(about)} instead."
    )
    error = {"message": complaint, "param": "tools[0].function.description", "code": "string_above_max_length"}
    provider.scripts.insert(0, refusal(400, {"error": error}))
    instructed = (SystemMessage("Be brief."), *REQUEST.messages)
    for messages in (REQUEST.messages, instructed):
        assert await ask(client, ChatRequest(messages, TURN, tools)) == HELLO_EVENTS

    asked = [[tool["function"]["description"] for tool in body["tools"]] for body in provider.requests]
    assert asked[0] == [about, ""]
    assert asked[1] == asked[2]
    assert len(asked[1][0]) == MAX_DESCRIPTION
    assert asked[1][0].startswith(about[:900])
    said = [body["messages"] for body in provider.requests]
    assert [len(messages) for messages in said] == [1, 2, 2]
    assert said[1][0] == {"role": "system", "content": f"About the tool clock__now:\n{about}"}
    assert said[2][0]["content"] == f"Be brief.\n\nAbout the tool clock__now:\n{about}"


@pytest.mark.parametrize("words", ["tools[0].function.description: must not be empty", "too long, stopped reading"])
async def test_another_complaint_is_not_asked_again(provider: Provider, client: OpenAIModel, words: str) -> None:
    """Nor one about a description where none is long, nor one with the name of an option that was not sent."""
    provider.scripts = [refusal(400, {"error": {"message": words}})]
    with pytest.raises(LLMRequestError, match=re.escape(words)):
        await ask(client, ChatRequest(REQUEST.messages, TURN, (TOOL,)))
    assert len(provider.requests) == 1


async def test_an_option_is_kept_if_doing_without_it_does_not_help(provider: Provider, client: OpenAIModel) -> None:
    complaint = refusal(400, {"error": {"message": "stream_options is set, and I never answer"}})
    provider.scripts = [complaint, complaint, answer(HELLO)]
    with pytest.raises(LLMRequestError):
        await ask(client)
    assert await ask(client) == HELLO_EVENTS
    assert ["stream_options" in request for request in provider.requests] == [True, False, True]
    assert provider.connections == 1, "an error response leaves its connection for the next request"


# --- How an answer comes ---------------------------------------------------------------------------------------------


@promise("text deltas and tool calls come in order, and a stream of calls alone is no error")
async def test_a_long_call_alone_is_no_error_and_no_silence_although_nothing_of_it_is_shown(provider: Provider) -> None:
    loop = asyncio.get_running_loop()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        start = {"index": 0, "id": "a", "function": {"name": "f"}}
        await exchange.send(sse({"choices": [{"delta": {"tool_calls": [start]}}]}))
        begun_at = loop.time()
        for number, piece in enumerate(['{"x": "', *"abcdefghijklmno", '"}']):
            fragment = {"index": 0, "function": {"arguments": piece}}
            await wait_until(lambda: loop.time() > begun_at + 0.1 * number, what="the next piece")  # noqa: B023
            await exchange.send(sse({"choices": [{"delta": {"tool_calls": [fragment]}}]}))
        await exchange.send(sse({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}))
        await exchange.send(sse({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}) + DONE)
        await exchange.end()

    provider.scripts = [script]
    timeouts = Timeouts(first_token=1, silence=1)
    async with aclosing(OpenAIModel(provider.url, KEY, "model", max_retries=0, timeouts=timeouts)) as client:
        assert await ask(client) == [
            ToolCallEvent("a", "f", '{"x": "abcdefghijklmno"}'),
            StreamEnd(FinishReason.TOOL_CALLS, Usage(5, 3)),
        ]


async def test_an_answer_that_is_not_streamed_is_read_all_the_same(provider: Provider, client: OpenAIModel) -> None:
    message = {"role": "assistant", "content": "Hello"}
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    provider.scripts = [answer(json.dumps(body, indent=1).encode(), content_type="application/json")]
    assert await ask(client) == [TextDelta("Hello"), StreamEnd(FinishReason.STOP, Usage(5, 3))]


# --- How it fails ----------------------------------------------------------------------------------------------------


@promise("rate limits and overload are reported as such")
@pytest.mark.parametrize(("status", "kind"), [(429, LLMRateLimitedError), (503, LLMOverloadedError)])
async def test_a_status_gets_its_name_and_keeps_the_providers_words(
    provider: Provider, client: OpenAIModel, status: int, kind: type[LLMError]
) -> None:
    provider.scripts = [refusal(status, {"error": {"message": f"because of {KEY} " + "x" * 1000}})]
    with pytest.raises(LLMError) as caught:
        await ask(client)
    assert type(caught.value) is kind
    assert "because of ***" in str(caught.value)
    assert KEY not in str(caught.value)
    assert len(str(caught.value)) < 600


@promise("keys go to the provider's own origin only, and into no log and no error")
@pytest.mark.parametrize("status", [302, 307])
async def test_a_redirect_is_reported_and_nothing_is_sent_to_another_server(
    provider: Provider, client: OpenAIModel, status: int
) -> None:
    async with serving(Provider(answer(HELLO))) as other:
        provider.scripts = [answer(status=status, location=f"{other.url}/x")]
        with pytest.raises(LLMRequestError, match="base URL"):
            await ask(client)
        assert not other.asked
    assert len(provider.asked) == 1


@pytest.mark.parametrize("silent", [False, True])
async def test_an_error_response_that_never_ends_is_read_up_to_a_size_and_for_a_bounded_time(
    provider: Provider, silent: bool
) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start(401)
        await exchange.send(b"No")
        if silent:
            await exchange.until_closed()
        while True:
            await exchange.send(b"No" * 1000)

    provider.scripts = [script]
    async with httpx2.AsyncClient() as http, http.stream("POST", f"{provider.url}/chat", json={}) as response:
        await asyncio.wait_for(bound_error(response, seconds=0.1 if silent else 60), 5)
        body = await response.aread()
    assert body == b"No" if silent else body.startswith(b"NoNo")
