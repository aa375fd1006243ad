"""Answers that are none: redirects, of which few are followed, and refusals, which are not read for ever."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import pytest

from dialog_engine.errors import LLMAuthenticationError, LLMError, LLMRequestError
from dialog_engine.llm import asking
from dialog_engine.llm.anthropic_client import AnthropicChatClient
from dialog_engine.llm.openai_client import OpenAIChatClient
from dialog_engine.model import LLMEvent
from tests.support.hello import HELLO, HELLO_EVENTS, KEY, REQUEST
from tests.support.scripted_provider import Exchange, Provider, Script, answer, serving

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(b"".join(HELLO)))) as provider:
        yield provider


@pytest.fixture
async def other() -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(b"".join(HELLO)))) as provider:
        yield provider


@pytest.fixture
async def client(provider: Provider) -> AsyncGenerator[OpenAIChatClient]:
    async with aclosing(OpenAIChatClient(provider.url, KEY, "model", max_retries=0)) as client:
        yield client


async def ask(client: OpenAIChatClient | AnthropicChatClient) -> list[LLMEvent]:
    return [event async for event in client.stream_chat(REQUEST)]


def redirect(location: str, status: int = 307) -> Script:
    return answer(status=status, location=location)


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_that_keeps_the_request_is_followed(
    provider: Provider, client: OpenAIChatClient, status: int
) -> None:
    provider.scripts.insert(0, redirect("/elsewhere?a=b", status))
    assert await ask(client) == HELLO_EVENTS
    first, second = provider.asked
    assert (second.method, second.target, second.body) == ("POST", "/elsewhere?a=b", first.body)
    assert second.fields == first.fields


async def test_what_is_secret_does_not_go_to_another_server(provider: Provider, other: Provider) -> None:
    provider.scripts = [redirect(f"{other.url}/x")]
    url = provider.url.replace("://", "://user:hunter2hunter2@")
    openai = OpenAIChatClient(url, KEY, "model", headers={"x-mine": KEY})
    anthropic = AnthropicChatClient(url, KEY, "model")
    for client in (openai, anthropic):
        async with aclosing(client):
            with suppress(LLMError):
                await ask(client)
    assert [asked.body for asked in other.asked] == [asked.body for asked in provider.asked]
    assert not any("hunter2" in value.lower() for asked in other.asked for value in asked.fields.values())
    assert not any("authorization" in asked.fields for asked in other.asked)
    assert "anthropic-version" in other.asked[1].fields


@pytest.mark.parametrize("status", [300, 301, 302, 303])
async def test_a_redirect_that_would_ask_something_else_is_told(
    provider: Provider, client: OpenAIChatClient, other: Provider, status: int
) -> None:
    provider.scripts = [redirect(other.url, status)]
    with pytest.raises(LLMRequestError, match="base URL"):
        await ask(client)
    assert not other.asked


async def test_redirects_without_end_are_told(provider: Provider, client: OpenAIChatClient) -> None:
    provider.scripts = [redirect("/v1/chat/completions")]
    with pytest.raises(LLMRequestError, match="redirects"):
        await ask(client)
    assert len(provider.asked) == asking.MAX_REDIRECTS + 1


async def test_a_refusal_without_end_is_read_in_part(provider: Provider, client: OpenAIChatClient) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start(400, "text/plain")
        while True:
            await exchange.send(b"too bad " * 1000)

    provider.scripts = [script]
    with pytest.raises(LLMRequestError, match="too bad"):
        await asyncio.wait_for(ask(client), 5)


async def test_a_refusal_that_is_never_finished_is_told(
    provider: Provider, client: OpenAIChatClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "REFUSAL_SECONDS", 0.1)

    async def script(exchange: Exchange) -> None:
        await exchange.start(401)
        await exchange.until_closed()

    provider.scripts = [script]
    with pytest.raises(LLMAuthenticationError):
        await asyncio.wait_for(ask(client), 5)
