"""The OpenAI client against a provider on a real connection: requests, answers and errors."""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from dialog_engine.errors import (
    ConfigurationError,
    LLMAuthenticationError,
    LLMError,
    LLMOverloadedError,
    LLMRateLimitedError,
    LLMRequestError,
)
from dialog_engine.llm import bounded_reading
from dialog_engine.llm.openai_client import MAX_DESCRIPTION
from dialog_engine.llm.profiles import PROFILES
from dialog_engine.llm.provider import Timeouts
from dialog_engine.model import (
    AssistantMessage,
    ChatEvent,
    ChatRequest,
    FinishReason,
    StreamEnd,
    SystemMessage,
    TextDelta,
    ToolCall,
    ToolCallEvent,
    ToolMessage,
    Usage,
)
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock
from tests.marks import promise
from tests.support.hello import HELLO_EVENTS, KEY, REQUEST, TURN
from tests.support.llm_clients import OpenAIModel
from tests.support.protocols import openai_sse as sse
from tests.support.scripted_provider import Exchange, Provider, answer, refusal, serving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

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


async def test_the_request_carries_the_key_the_model_and_the_history(provider: Provider, client: OpenAIModel) -> None:
    assert await ask(client) == HELLO_EVENTS
    assert f"authorization: bearer {KEY}" in provider.heads[0]
    assert provider.requests == [
        {
            "model": "model",
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


async def test_a_last_answer_declares_the_tools_and_forbids_to_call_them(
    provider: Provider, client: OpenAIModel
) -> None:
    await ask(client, ChatRequest(REQUEST.messages, TURN, (TOOL,), answer_only=True))
    assert provider.requests[0]["tools"][0]["function"]["name"] == "clock__now"
    assert provider.requests[0]["tool_choice"] == "none"


@pytest.mark.parametrize("words", ["unknown field: tool_choice", "Tool choice is none, but model called a tool"])
async def test_a_provider_that_cannot_forbid_calls_is_offered_no_tools_for_a_last_answer(
    provider: Provider, client: OpenAIModel, words: str
) -> None:
    provider.scripts.insert(0, refusal(400, {"error": {"message": words}}))
    for answer_only in (True, True, False):
        assert await ask(client, ChatRequest(REQUEST.messages, TURN, (TOOL,), answer_only)) == HELLO_EVENTS
    assert [("tools" in each, "tool_choice" in each) for each in provider.requests] == [
        (True, True),
        (False, False),
        (False, False),
        (True, False),
    ]


async def test_a_local_server_needs_no_key(provider: Provider) -> None:
    client = OpenAIModel(provider.url, None, "model", extra_body={"temperature": 0}, headers={"x-app": "1"})
    assert await ask(client) == HELLO_EVENTS
    assert provider.requests[0]["temperature"] == 0
    assert "x-app: 1" in provider.heads[0]
    await client.aclose()


async def test_neither_key_nor_url_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        OpenAIModel(None, None, "model")


async def test_a_provider_that_does_not_know_stream_options_is_asked_without_from_then_on(
    provider: Provider, client: OpenAIModel
) -> None:
    complaint = refusal(400, {"error": {"message": "Unrecognized request argument supplied: stream_options"}})
    provider.scripts.insert(0, complaint)
    assert await ask(client) == HELLO_EVENTS
    assert await ask(client) == HELLO_EVENTS
    assert ["stream_options" in request for request in provider.requests] == [True, False, False]


async def test_a_provider_that_does_not_take_its_reasoning_back_is_asked_without_from_then_on(
    provider: Provider, client: OpenAIModel
) -> None:
    call = ToolCall("a", "correlation", "clock__now", "{}")
    history = (*REQUEST.messages, AssistantMessage("", (call,), "hm"), ToolMessage("a", "clock__now", "noon"))
    provider.scripts.insert(0, refusal(400, {"error": {"message": "property 'reasoning_content' is unsupported"}}))
    for _ in range(2):
        assert await ask(client, ChatRequest(history, TURN)) == HELLO_EVENTS
    sent = [request["messages"][1] for request in provider.requests]
    assert ["reasoning_content" in message for message in sent] == [True, False, False]
    assert all("stream_options" in request for request in provider.requests)


@promise("reasoning that comes in blocks goes back with the calls, to the model that made it")
async def test_reasoning_in_blocks_goes_back_to_the_model_that_made_it(provider: Provider) -> None:
    block = {"type": "reasoning.encrypted", "data": "c2ln", "index": 0}
    call = {"index": 0, "id": "a", "function": {"name": "clock__now", "arguments": "{}"}}
    provider.scripts.insert(
        0, answer(sse({"choices": [{"delta": {"reasoning_details": [block], "tool_calls": [call]}}]}) + DONE)
    )
    one, another = (
        OpenAIModel(provider.url, KEY, model, max_retries=0, profile=PROFILES["openrouter"])
        for model in ("one", "another")
    )
    async with aclosing(one), aclosing(another):
        [asked, _] = await ask(one)
        assert isinstance(asked, ToolCallEvent)
        calls = (ToolCall("a", "correlation", asked.name, asked.arguments, asked.extra),)
        history = (*REQUEST.messages, AssistantMessage("", calls), ToolMessage("a", "clock__now", "noon"))
        for client in (one, another):
            await ask(client, ChatRequest(history, TURN))

    _, same, other = (request["messages"] for request in provider.requests)
    assert same[1]["reasoning_details"] == [block]
    assert "reasoning_details" not in other[1]


@promise("prompt mode: with and without a stop sequence")
async def test_a_stop_sequence_is_sent_and_left_out_where_it_is_refused(
    provider: Provider, client: OpenAIModel
) -> None:
    request = ChatRequest(REQUEST.messages, TURN, stop=("</tool_use>",))
    complaint = refusal(400, {"error": {"message": "Unsupported parameter: 'stop' is not supported with this model."}})
    provider.scripts = [answer(HELLO), complaint, answer(HELLO)]
    for asked in (request, request, request, REQUEST):
        assert [event async for event in await client.open(asked)] == HELLO_EVENTS
    sent = [body.get("stop") for body in provider.requests]
    assert sent == [["</tool_use>"], ["</tool_use>"], None, None, None]


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


@promise("an image that a provider does not take fails no request, and no conversation")
async def test_a_refused_image_is_left_out_and_a_refusal_of_images_is_remembered(
    provider: Provider,
) -> None:
    call, picture = ToolCall("a", "correlation", "camera", "{}"), MediaBlock("image/png", "iVBORw0KGgo=")
    history = (*REQUEST.messages, AssistantMessage("", (call,)), ToolMessage("a", "camera", "[image]", (picture,)))
    one = refusal(400, {"error": {"message": "The image data you provided does not represent a valid image."}})
    such = refusal(400, {"error": {"message": "unknown variant `image_url`, expected `text`"}})
    provider.scripts = [one, answer(HELLO), such, answer(HELLO), answer(HELLO)]
    client = OpenAIModel(provider.url, KEY, "model", max_retries=0, profile=PROFILES["openai"])
    async with aclosing(client):
        for _ in range(3):
            assert await ask(client, ChatRequest(history, TURN)) == HELLO_EVENTS
    assert ["image_url" in json.dumps(body) for body in provider.requests] == [True, False, True, False, False]


async def test_an_option_is_kept_if_doing_without_it_does_not_help(provider: Provider, client: OpenAIModel) -> None:
    complaint = refusal(400, {"error": {"message": "stream_options is set, and I never answer"}})
    provider.scripts = [complaint, complaint, answer(HELLO)]
    with pytest.raises(LLMRequestError):
        await ask(client)
    assert await ask(client) == HELLO_EVENTS
    assert ["stream_options" in request for request in provider.requests] == [True, False, True]


# --- How an answer comes ---------------------------------------------------------------------------------------------


@promise("text deltas and tool calls come in order, and a stream of calls alone is no error")
async def test_an_answer_of_calls_alone_is_no_error(provider: Provider, client: OpenAIModel) -> None:
    start = {"index": 0, "id": "a", "function": {"name": "clock__now", "arguments": ""}}
    provider.scripts = [
        answer(
            sse({"choices": [{"delta": {"tool_calls": [start]}}]}),
            sse({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}}]}),
            sse({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}),
            sse({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}) + DONE,
        )
    ]
    assert await ask(client) == [
        ToolCallEvent("a", "clock__now", "{}"),
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


async def test_the_body_of_an_error_response_is_read_up_to_a_bound(provider: Provider, client: OpenAIModel) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start(400, "text/plain")
        while True:
            await exchange.send(b"too bad " * 1000)

    provider.scripts = [script]
    with pytest.raises(LLMRequestError, match="too bad"):
        await asyncio.wait_for(ask(client), 5)


async def test_an_error_response_that_never_ends_is_reported(
    provider: Provider, client: OpenAIModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_reading, "ERROR_BODY_SECONDS", 0.1)

    async def script(exchange: Exchange) -> None:
        await exchange.start(401)
        await exchange.until_closed()

    provider.scripts = [script]
    with pytest.raises(LLMAuthenticationError):
        await asyncio.wait_for(ask(client), 5)


CALL = sse({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}}]})


async def test_a_long_call_is_no_silence_although_nothing_of_it_is_shown(provider: Provider) -> None:
    client = OpenAIModel(provider.url, KEY, "model", max_retries=0, timeouts=Timeouts(first_token=1, silence=1))
    loop = asyncio.get_running_loop()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(CALL)
        begun_at = loop.time()
        for number, piece in enumerate(['{"x": "', *"abcdefghijklmno", '"}']):
            fragment = {"index": 0, "function": {"arguments": piece}}
            await wait_until(lambda: loop.time() > begun_at + 0.1 * number, what="the next piece")  # noqa: B023
            await exchange.send(sse({"choices": [{"delta": {"tool_calls": [fragment]}}]}))
        await exchange.send(DONE)
        await exchange.end()

    provider.scripts = [script]
    call, _ = await ask(client)
    assert call == ToolCallEvent("a", "f", '{"x": "abcdefghijklmno"}')
    await client.aclose()


async def test_credentials_in_the_url_go_into_the_header(provider: Provider) -> None:
    client = OpenAIModel(provider.url.replace("http://", "http://user:hunter2@"), KEY, "model", max_retries=0)
    assert await ask(client) == HELLO_EVENTS
    assert f"authorization: basic {b64encode(b'user:hunter2').decode()}".lower() in provider.heads[0]
    await client.aclose()
