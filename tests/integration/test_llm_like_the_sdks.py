"""Requests to providers beside those of the official SDKs: the same arrives, and the same is tried again."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from dialog_engine.config import load_settings
from dialog_engine.errors import LLMStreamEmptyError
from dialog_engine.llm import anthropic_client, openai_client, patience
from dialog_engine.llm.clients import open_llm
from dialog_engine.model import (
    AssistantMessage,
    ChatRequest,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Turn,
    UserMessage,
)
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock
from tests.support.scripted_provider import Asked, CutError, Exchange, Provider, Script, answer, refusal, serving
from tests.support.sdk_clients import KEY, MODEL, ours, sdk

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("protocol", ["openai", "anthropic"])]

OF_THE_LIBRARY = {"user-agent", "accept-encoding", "connection", "content-length"}
"""Header fields that each HTTP client words in its own way."""
TURN = Turn("turn", "session", "subject")
HI = ChatRequest((UserMessage("Hi"),), TURN)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"zone": {"type": "string", "enum": ["ö", "\u2028"]}, "n": {"maximum": 2**70, "default": 1e-7}},
    "required": ["zone"],
}
TOOL = ToolEntry(name="clock__now", server="clock", tool="now", description="Tells “now”.", input_schema=SCHEMA)
HISTORY: tuple[Message, ...] = (
    SystemMessage("Be brief. \U0001f600"),
    UserMessage('What time is it?\n"\\ \x00 é'),
    AssistantMessage("Let me see.", (ToolCall("a/b", "correlation", "clock__now", '{"zone": "ö", "n": 1.50}'),), "Hm."),
    ToolMessage("a/b", "clock__now", "noon", media=(MediaBlock(mime_type="image/png", data="iVBORw0KGgo="),)),
    AssistantMessage("Noon."),
    UserMessage("Thanks."),
)
ENDING = {
    "openai": b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
    "anthropic": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("OPENAI_", "ANTHROPIC_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for module in (openai._base_client, anthropic._base_client):  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(module, "INITIAL_RETRY_DELAY", 0.001)
    monkeypatch.setattr(patience, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture
async def provider(protocol: str) -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(ENDING[protocol])), path="") as provider:
        yield provider


async def asked_by_both(
    provider: Provider,
    protocol: str,
    url: str,
    request: ChatRequest = HI,
    *,
    key: str | None = KEY,
    extra_body: Mapping[str, Any] | None = None,
) -> tuple[Asked, Asked]:
    for by in (ours, sdk):
        async with by(protocol, url, key, 0, extra_body or {}) as ask:
            await ask(request)
    return provider.asked[0], provider.asked[1]


def telling(asked: Asked) -> dict[str, str]:
    """The header fields that mean something to the provider."""
    return {
        name: value
        for name, value in asked.fields.items()
        if name not in OF_THE_LIBRARY and not name.startswith("x-stainless-")
    }


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/deep/er%20path/v1"])
@pytest.mark.parametrize("user", ["", "us%40er:pa%3Ass%2F@", "user@"])
async def test_the_same_arrives_at_whatever_address(
    provider: Provider, protocol: str, path: str, user: str, key: str | None
) -> None:
    url = provider.url.replace("://", f"://{user}") + path
    own, theirs = await asked_by_both(provider, protocol, url, key=key)
    assert (own.method, own.target) == (theirs.method, theirs.target)
    assert telling(own) == telling(theirs)
    assert own.body == theirs.body


async def test_the_same_arrives_at_the_official_address(
    provider: Provider, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_client, "OPENAI_URL", provider.url)
    monkeypatch.setattr(anthropic_client, "ANTHROPIC_URL", provider.url)
    async with ours(protocol, None, KEY, 0, {}) as ask:
        await ask(HI)
    async with sdk(protocol, provider.url, KEY, 0, {}, official=True) as ask:
        await ask(HI)
    own, theirs = provider.asked
    assert telling(own) == telling(theirs)


async def test_account_and_header_fields_of_the_environment_arrive(
    provider: Provider, protocol: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    prefix = protocol.upper()
    fields = "x-gateway: a:b\nUser-Agent: mine"
    environment = {"CUSTOM_HEADERS": fields, "ORG_ID": "org-1", "PROJECT_ID": "proj-1", "API_KEY": KEY, "MODEL": MODEL}
    for name, value in environment.items():
        monkeypatch.setenv(f"{prefix}_{name}", value)
    async with sdk(protocol, provider.url, KEY, 0, {}) as ask:
        await ask(HI)
    monkeypatch.setenv(f"{prefix}_BASE_URL", provider.url)
    async with open_llm(load_settings()) as llm:
        with suppress(LLMStreamEmptyError):
            assert [event async for event in llm(HI)]
    theirs, own = provider.asked
    assert telling(own) == telling(theirs)
    assert own.fields["user-agent"] == theirs.fields["user-agent"] == "mine"
    assert own.fields["x-gateway"] == "a:b"
    assert ("openai-organization" in own.fields, "openai-project" in own.fields) == (protocol == "openai",) * 2


@pytest.mark.parametrize(
    "request_",
    [
        ChatRequest(HISTORY, TURN, (TOOL,)),
        ChatRequest(HISTORY, TURN, (TOOL,), answer_only=True),
        ChatRequest(HISTORY, TURN, answer_only=True),
        ChatRequest(HISTORY, TURN, stop=("</tool_use>", "\n\n")),
    ],
    ids=["tools", "last answer", "last answer without tools", "stop"],
)
async def test_the_same_question_arrives(provider: Provider, protocol: str, request_: ChatRequest) -> None:
    extra: dict[str, Any] = {"temperature": 0.5, "model": "another", "nested": {"a": None, "b": [1, 2.0, True]}}
    own, theirs = await asked_by_both(provider, protocol, provider.url, request_, extra_body=extra)
    assert own.body == theirs.body
    assert own.body["model"] == "another"


async def tries_of_both(provider: Provider, protocol: str, *failing: Script) -> list[tuple[int, int]]:
    """How often each, who may try again twice, has asked a provider that always fails in this way; and so on."""
    tries: list[list[int]] = []
    for by in (ours, sdk):
        tries.append([])
        async with by(protocol, provider.url, KEY, 2, {}) as ask:
            for script in failing:
                provider.scripts = [script]
                provider.asked.clear()
                await ask(HI)
                tries[-1].append(len(provider.asked))
    return list(zip(*tries, strict=True))


def failing(status: int, **headers: str) -> Script:
    return answer(b"{}", status=status, cut=False, **headers)


STATUSES = [300, 301, 307, *range(400, 430), 451, 500, 501, 502, 503, 504, 507, 520, 529, 599]


async def test_the_same_statuses_are_tried_again(provider: Provider, protocol: str) -> None:
    tries = await tries_of_both(provider, protocol, *(failing(status, retry_after_ms="1") for status in STATUSES))
    again = {status for status, (own, theirs) in zip(STATUSES, tries, strict=True) if own == theirs == 3}
    assert again == {408, 409, 429, 500, 501, 502, 503, 504, 507, 520, 529, 599}
    assert {own == theirs for own, theirs in tries} == {True}


@pytest.mark.parametrize(("word", "tries"), [("true", (3, 3)), ("false", (1, 1))])
async def test_a_provider_that_says_whether_to_try_again_is_obeyed(
    provider: Provider, protocol: str, word: str, tries: tuple[int, int]
) -> None:
    scripts = [failing(status, retry_after_ms="1", x_should_retry=word) for status in (307, 400, 401, 429, 503)]
    assert set(await tries_of_both(provider, protocol, *scripts)) == {tries}


async def test_another_word_than_true_or_false_says_nothing(provider: Provider, protocol: str) -> None:
    scripts = [failing(status, retry_after_ms="1", x_should_retry="TRUE") for status in (400, 503)]
    assert await tries_of_both(provider, protocol, *scripts) == [(1, 1), (3, 3)]


async def test_advice_that_is_short_or_makes_no_sense_is_tried_again(provider: Provider, protocol: str) -> None:
    advice = ["0", "-1", "0.001", "soon", "nan", "Wed, 21 Oct 2015 07:28:00 GMT"]
    assert set(await tries_of_both(provider, protocol, *(failing(503, retry_after=each) for each in advice))) == {
        (3, 3)
    }


async def hangs_up(_: Exchange) -> None:
    raise CutError


async def test_a_connection_that_breaks_without_an_answer_is_tried_again(provider: Provider, protocol: str) -> None:
    assert await tries_of_both(provider, protocol, hangs_up) == [(3, 3)]


async def test_an_answer_that_breaks_off_is_not_tried_again(provider: Provider, protocol: str) -> None:
    broken = answer(ENDING[protocol][:20], cut=True)
    assert await tries_of_both(provider, protocol, broken) == [(1, 1)]


async def test_after_a_failure_the_same_is_sent_again(provider: Provider, protocol: str) -> None:
    provider.scripts = [refusal(503), answer(ENDING[protocol])]
    async with ours(protocol, provider.url, KEY, 2, {}) as ask:
        await ask(HI)
    first, second = provider.asked
    assert first == second
