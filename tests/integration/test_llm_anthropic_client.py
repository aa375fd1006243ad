"""The client for the Anthropic Messages API against a server on a real connection."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

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
    ToolMessage,
    Usage,
    UserMessage,
)
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock
from tests.marks import promise
from tests.support.hello import KEY, TURN
from tests.support.llm_clients import AnthropicModel
from tests.support.protocols import PROTOCOLS
from tests.support.scripted_provider import Provider, answer, refusal, serving

pytestmark = pytest.mark.anyio

REQUEST = ChatRequest((SystemMessage("Be brief."), UserMessage("Hi")), TURN)
TOOL = ToolEntry(name="clock__now", server="clock", tool="now", input_schema={"type": "object", "properties": {}})
CACHE = {"cache_control": {"type": "ephemeral"}}


HELLO = PROTOCOLS["anthropic"].hello
HELLO_EVENTS = [TextDelta("Hello"), StreamEnd(FinishReason.STOP, Usage(0, 3))]


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


async def test_a_bound_and_an_extra_body_are_sent(provider: Provider) -> None:
    extra = {"thinking": {"type": "adaptive"}}
    client = AnthropicModel(provider.url, None, "claude", max_tokens=100, extra_body=extra)
    assert await ask(client) == HELLO_EVENTS
    assert provider.requests[0]["max_tokens"] == 100
    assert provider.requests[0]["thinking"] == {"type": "adaptive"}
    await client.aclose()


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
