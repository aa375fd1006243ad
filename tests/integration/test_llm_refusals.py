"""Redirects, which are not followed, and error responses, which are read within bounds."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from dialog_engine.errors import LLMAuthenticationError, LLMRequestError
from dialog_engine.llm import connections
from dialog_engine.model import LLMEvent
from tests.support.hello import HELLO, KEY, REQUEST
from tests.support.llm_clients import OpenAIModel
from tests.support.scripted_provider import Exchange, Provider, answer, serving

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
async def client(provider: Provider) -> AsyncGenerator[OpenAIModel]:
    async with aclosing(OpenAIModel(provider.url, KEY, "model", max_retries=0)) as client:
        yield client


async def ask(client: OpenAIModel) -> list[LLMEvent]:
    return [event async for event in client.stream_chat(REQUEST)]


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
async def test_a_redirect_is_reported_and_nothing_is_sent_to_another_server(
    provider: Provider, client: OpenAIModel, other: Provider, status: int
) -> None:
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
    monkeypatch.setattr(connections, "ERROR_BODY_SECONDS", 0.1)

    async def script(exchange: Exchange) -> None:
        await exchange.start(401)
        await exchange.until_closed()

    provider.scripts = [script]
    with pytest.raises(LLMAuthenticationError):
        await asyncio.wait_for(ask(client), 5)
