"""What is sent to a provider of either protocol, and what of it is left out where it is refused."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from dialog_engine.llm.anthropic_client import MAX_TOKENS
from dialog_engine.llm.profiles import PROFILES
from dialog_engine.model import (
    ANY_TOOL,
    AssistantMessage,
    Brought,
    ChatEvent,
    ChatRequest,
    FinishReason,
    Sampling,
    StreamEnd,
    SystemMessage,
    TextDelta,
    ToolCall,
    ToolCallEvent,
    ToolMessage,
    Usage,
    UserMessage,
)
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock
from tests.marks import promise
from tests.support.corpus import CORPUS, stream_bytes
from tests.support.fakes.engine import read_all
from tests.support.hello import KEY, TURN
from tests.support.llm_clients import AnthropicModel
from tests.support.protocols import PROTOCOLS
from tests.support.scripted_provider import Provider, Script, answer, refusal, serving

REQUEST = ChatRequest((SystemMessage("Be brief."), UserMessage("Hi")), TURN)
TOOL = ToolEntry(name="clock__now", server="clock", tool="now", input_schema={"type": "object", "properties": {}})
CACHE = {"cache_control": {"type": "ephemeral"}}


HELLO = PROTOCOLS["anthropic"].hello
HELLO_EVENTS = [TextDelta("Hello"), StreamEnd(FinishReason.STOP, Usage(0, 3))]


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(HELLO)), path="") as provider:
        yield provider


@pytest.fixture
async def client(provider: Provider) -> AsyncGenerator[AnthropicModel]:
    profile = PROFILES["anthropic"]
    client = AnthropicModel(provider.url, KEY, "claude", profile=profile, max_retries=0)
    yield client
    await client.aclose()


async def ask(client: AnthropicModel, request: ChatRequest = REQUEST) -> list[ChatEvent]:
    return [event async for event in await client.open(request)]


# --- What is sent ----------------------------------------------------------------------------------------------------


@promise("Anthropic messages")
async def test_the_request_carries_the_key_the_model_and_the_history(
    provider: Provider, client: AnthropicModel
) -> None:
    assert await ask(client) == HELLO_EVENTS
    head = provider.heads[0]
    assert head.startswith("post /v1/messages http")
    assert f"authorization: bearer {KEY}" in head
    assert f"x-api-key: {KEY}" in head
    assert "anthropic-version: " in head
    assert provider.requests == [
        {
            "model": "claude",
            "max_tokens": MAX_TOKENS,
            "system": [{"type": "text", "text": "Be brief."} | CACHE],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"} | CACHE]}],
            "stream": True,
        }
    ]


async def test_tools_are_offered_forbidden_for_a_last_answer_and_demanded(
    provider: Provider, client: AnthropicModel
) -> None:
    await ask(client, ChatRequest(REQUEST.messages, TURN, (TOOL,)))
    await ask(client, ChatRequest(REQUEST.messages, TURN, (TOOL,), answer_only=True))
    for must_call in (ANY_TOOL, TOOL.name):
        await ask(client, ChatRequest(REQUEST.messages, TURN, (TOOL,), must_call=must_call))
    assert [request["tools"][0]["name"] for request in provider.requests] == ["clock__now"] * 4
    assert [request.get("tool_choice") for request in provider.requests] == [
        None,
        {"type": "none"},
        {"type": "any"},
        {"type": "tool", "name": TOOL.name},
    ]


async def test_how_the_sender_samples_is_sent_within_the_bound_of_the_settings(provider: Provider) -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    sampling = Sampling(0.5, 0.9, 200, seed=7, presence_penalty=0.1, frequency_penalty=0.2, response_format=form)
    request = replace(REQUEST, turn=replace(TURN, brought=Brought(sampling=sampling)))
    for bound, sent in ((100, 100), (None, 200)):
        client = AnthropicModel(provider.url, None, "claude", max_tokens=bound, extra_body={"temperature": 0})
        await ask(client, request)
        await client.aclose()
        body = provider.requests[-1]
        assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.5, 0.9, sent)
        assert body["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
        assert not body.keys() & {"seed", "presence_penalty", "frequency_penalty", "response_format"}


async def test_a_bound_and_an_extra_body_are_sent(provider: Provider) -> None:
    extra = {"thinking": {"type": "adaptive"}}
    client = AnthropicModel(provider.url, None, "claude", max_tokens=100, extra_body=extra)
    assert await ask(client) == HELLO_EVENTS
    assert provider.requests[0]["max_tokens"] == 100
    assert provider.requests[0]["thinking"] == {"type": "adaptive"}
    await client.aclose()


# --- Either protocol -------------------------------------------------------------------------------------------------


def refused(complaint: str) -> Script:
    return refusal(400, {"type": "error", "error": {"type": "invalid_request_error", "message": complaint}})


STOP = replace(REQUEST, stop=("</tool_use>",))
CALL = ToolCall("a", "correlation", "clock__now", "{}")
THOUGHT = replace(
    REQUEST, messages=(*REQUEST.messages, AssistantMessage("", (CALL,), "hm"), ToolMessage("a", "clock__now", "noon"))
)


@promise("prompt mode: with and without a stop sequence")
@pytest.mark.parametrize(
    ("kind", "request_", "name", "complaint"),
    [
        ("openai", REQUEST, "stream_options", "Unrecognized request argument supplied: stream_options"),
        ("openai", THOUGHT, "reasoning_content", "property 'reasoning_content' is unsupported"),
        ("openai", STOP, '"stop"', "Unsupported parameter: 'stop' is not supported with this model."),
        ("anthropic", STOP, "stop_sequences", "stop_sequences: Extra inputs are not permitted"),
        ("anthropic", REQUEST, "cache_control", "system.0.cache_control: Extra inputs are not permitted"),
    ],
)
async def test_what_a_provider_does_not_take_is_left_out_from_then_on(
    kind: str, request_: ChatRequest, name: str, complaint: str
) -> None:
    protocol = PROTOCOLS[kind]
    async with (
        serving(
            Provider(answer(protocol.hello), refused(complaint), answer(protocol.hello)), path=protocol.path
        ) as provider,
        aclosing(protocol.client(provider.url)) as client,
    ):
        for _ in range(3):
            assert (await read_all(client.open(request_)))[0][0] == TextDelta("Hello")
    assert [name in json.dumps(body) for body in provider.requests] == [True, True, False, False]


THOUGHTS = {
    "openai": (stream_bytes(CORPUS / "streams/reasoning-details-encrypted.json"), "dHdv"),
    "anthropic": (stream_bytes(CORPUS / "anthropic/thinking-before-call.json"), "sig=="),
}
"""An answer with a thought and a call, and what the thought has that must go back."""


@promise("reasoning that comes in blocks goes back with the calls, to the model that made it")
@pytest.mark.parametrize(("kind", "profile"), [("openai", "openrouter"), ("anthropic", "anthropic")])
async def test_what_was_thought_goes_back_with_its_call_to_the_model_that_thought_it(kind: str, profile: str) -> None:
    protocol, (thoughts, kept) = PROTOCOLS[kind], THOUGHTS[kind]
    async with (
        serving(Provider(answer(thoughts), answer(protocol.hello)), path=protocol.path) as provider,
        aclosing(protocol.kind(provider.url, KEY, "one", profile=PROFILES[profile])) as one,
        aclosing(protocol.kind(provider.url, KEY, "another", profile=PROFILES[profile])) as another,
    ):
        [asked] = [event for event in (await read_all(one.open(REQUEST)))[0] if isinstance(event, ToolCallEvent)]
        call = ToolCall("a", "correlation", asked.name, asked.arguments, asked.extra)
        history = (*REQUEST.messages, AssistantMessage("", (call,)), ToolMessage("a", "f", "noon"))
        for client in (one, another):
            await read_all(client.open(ChatRequest(history, TURN)))
    assert [kept in json.dumps(body) for body in provider.requests] == [False, True, False]


@promise("an image that a provider does not take fails no request, and no conversation")
@pytest.mark.parametrize(
    ("kind", "complaints", "sent"),
    [
        (
            "openai",
            [
                "The image data you provided does not represent a valid image.",
                "unknown variant `image_url`, expected `text`",
            ],
            [True, False, True, False, False],
        ),
        ("anthropic", ["messages.2.content.0.tool_result.content.1: Could not process image"], [True, False, True]),
    ],
)
async def test_a_refused_image_is_left_out_of_that_request_and_a_refusal_of_images_is_remembered(
    kind: str, complaints: list[str], sent: list[bool]
) -> None:
    protocol, picture = PROTOCOLS[kind], MediaBlock("image/png", "iVBORw0KGgo=")
    history = (*REQUEST.messages, AssistantMessage("", (CALL,)), ToolMessage("a", "camera", "[image]", (picture,)))
    scripts = [script for each in complaints for script in (refused(each), answer(protocol.hello))]
    async with (
        serving(Provider(*scripts, answer(protocol.hello)), path=protocol.path) as provider,
        aclosing(protocol.client(provider.url, profile=PROFILES[kind])) as client,
    ):
        for _ in range(len(complaints) + 1):
            assert (await read_all(client.open(ChatRequest(history, TURN))))[0][0] == TextDelta("Hello")
    assert [picture.data in json.dumps(body) for body in provider.requests] == sent
