"""The client for the Anthropic Messages API against a server on a real connection."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from dialog_engine.errors import (
    ConfigurationError,
    LLMAuthenticationError,
    LLMError,
    LLMOverloadedError,
)
from dialog_engine.llm.anthropic_client import MAX_TOKENS
from dialog_engine.llm.profiles import PROFILES
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
    UserMessage,
)
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock
from tests.marks import promise
from tests.support.hello import KEY, TURN
from tests.support.llm_clients import AnthropicModel
from tests.support.protocols import anthropic_sse as sse
from tests.support.scripted_provider import Provider, answer, refusal, serving

pytestmark = pytest.mark.anyio

REQUEST = ChatRequest((SystemMessage("Be brief."), UserMessage("Hi")), TURN)
TOOL = ToolEntry(name="clock__now", server="clock", tool="now", input_schema={"type": "object", "properties": {}})
CACHE = {"cache_control": {"type": "ephemeral"}}


START = sse({"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}})
BLOCK = sse({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
END = sse(
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
)


def text(words: str) -> bytes:
    return sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": words}})


HELLO = START + BLOCK + text("Hel") + text("lo") + END
HELLO_EVENTS = [TextDelta("Hello"), StreamEnd(FinishReason.STOP, Usage(5, 3))]


def error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


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


async def test_tools_are_offered_and_for_a_last_answer_forbidden(provider: Provider, client: AnthropicModel) -> None:
    await ask(client, ChatRequest(REQUEST.messages, TURN, (TOOL,)))
    await ask(client, ChatRequest(REQUEST.messages, TURN, (TOOL,), answer_only=True))
    assert [request["tools"][0]["name"] for request in provider.requests] == ["clock__now", "clock__now"]
    assert [request.get("tool_choice") for request in provider.requests] == [None, {"type": "none"}]


async def test_a_stop_sequence_is_sent_and_left_out_where_it_is_refused(
    provider: Provider, client: AnthropicModel
) -> None:
    request = ChatRequest(REQUEST.messages, TURN, stop=("</tool_use>",))
    complaint = refusal(400, error("invalid_request_error", "stop_sequences: Extra inputs are not permitted"))
    provider.scripts = [answer(HELLO), complaint, answer(HELLO)]
    for _ in range(3):
        assert await ask(client, request) == HELLO_EVENTS
    sent = [body.get("stop_sequences") for body in provider.requests]
    assert sent == [["</tool_use>"], ["</tool_use>"], None, None]


async def test_a_bound_and_an_extra_body_are_sent(provider: Provider) -> None:
    extra = {"thinking": {"type": "adaptive"}}
    client = AnthropicModel(provider.url, None, "claude", max_tokens=100, extra_body=extra)
    assert await ask(client) == HELLO_EVENTS
    assert provider.requests[0]["max_tokens"] == 100
    assert provider.requests[0]["thinking"] == {"type": "adaptive"}
    await client.aclose()


async def test_neither_key_nor_url_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigurationError, match="ANTHROPIC_API_KEY"):
        AnthropicModel(None, None, "claude")


async def test_a_server_that_knows_no_cache_is_asked_without_from_then_on(
    provider: Provider, client: AnthropicModel
) -> None:
    complaint = error("invalid_request_error", "system.0.cache_control: Extra inputs are not permitted")
    provider.scripts.insert(0, refusal(400, complaint))
    for _ in range(2):
        assert await ask(client) == HELLO_EVENTS
    assert ["cache_control" in json.dumps(request) for request in provider.requests] == [True, False, False]


@promise("an image that a provider does not take fails no request, and no conversation")
async def test_an_image_that_is_refused_is_left_out_of_that_request_only(
    provider: Provider, client: AnthropicModel
) -> None:
    call, picture = ToolCall("a", "correlation", "camera", "{}"), MediaBlock("image/png", "iVBORw0KGgo=")
    history = (*REQUEST.messages, AssistantMessage("", (call,)), ToolMessage("a", "camera", "[image]", (picture,)))
    complaint = error("invalid_request_error", "messages.2.content.0.tool_result.content.1: Could not process image")
    provider.scripts = [refusal(400, complaint), answer(HELLO)]
    for _ in range(2):
        assert await ask(client, ChatRequest(history, TURN)) == HELLO_EVENTS
    assert ["base64" in json.dumps(request) for request in provider.requests] == [True, False, True]


async def test_what_was_thought_before_a_call_goes_back_with_its_result(
    provider: Provider, client: AnthropicModel
) -> None:
    provider.scripts = [
        answer(
            START,
            sse(
                {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "sig"}},
                {"type": "content_block_stop", "index": 0},
                {
                    "type": "content_block_start",
                    "index": 1,
                    "content_block": {"type": "tool_use", "id": "toolu_1", "name": "clock__now", "input": {}},
                },
                {"type": "content_block_stop", "index": 1},
                {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
                {"type": "message_stop"},
            ),
        ),
        answer(HELLO),
    ]
    reasoning, event, end = await ask(client)
    assert isinstance(event, ToolCallEvent)
    assert end == StreamEnd(FinishReason.TOOL_CALLS, Usage(5, 9))
    call = ToolCall(event.tool_call_id, "correlation", event.name, event.arguments, event.extra)
    said = (AssistantMessage("", (call,), reasoning=str(reasoning)), ToolMessage("toolu_1", "clock__now", "noon"))
    await ask(client, ChatRequest((*REQUEST.messages, *said), TURN, (TOOL,)))

    _, assistant, results = provider.requests[1]["messages"]
    assert assistant["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "tool_use", "id": "toolu_1", "name": "clock__now", "input": {}},
    ]
    assert [block["type"] for block in results["content"]] == ["tool_result"]


# --- How it fails ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, error("authentication_error", f"invalid x-api-key {KEY}"), LLMAuthenticationError),
        (529, error("overloaded_error", "Overloaded"), LLMOverloadedError),
    ],
)
async def test_a_refusal_gets_its_name_and_keeps_the_providers_words(
    provider: Provider, client: AnthropicModel, status: int, body: dict[str, Any], kind: type[LLMError]
) -> None:
    provider.scripts = [refusal(status, body)]
    with pytest.raises(LLMError) as caught:
        await ask(client)
    assert type(caught.value) is kind
    assert body["error"]["message"].replace(KEY, "***") in str(caught.value)
    assert KEY not in str(caught.value)
