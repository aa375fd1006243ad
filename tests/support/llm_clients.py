"""Clients of one model each, with a provider of their own: close them with `aclose`."""

from collections.abc import Mapping
from typing import Any

from dialog_engine.llm.anthropic_client import AnthropicChatClient, anthropic_provider
from dialog_engine.llm.openai_client import OpenAIChatClient
from dialog_engine.llm.openai_provider import NO_HEADERS, openai_provider
from dialog_engine.llm.provider import DEFAULT_TIMEOUTS, Provider, Timeouts

Headers = Mapping[str, str]


class _Closing:
    _provider: Provider

    async def aclose(self) -> None:
        await self._provider.close()


class OpenAIModel(_Closing, OpenAIChatClient):
    def __init__(
        self, url: str | None, key: str | None, model: str, *, headers: Headers = NO_HEADERS,
        timeouts: Timeouts = DEFAULT_TIMEOUTS, **options: Any,
    ) -> None:  # fmt: skip
        provider = openai_provider(url, key, headers=headers, connect_seconds=timeouts.connect)
        super().__init__(provider, model, timeouts=timeouts, **options)


class AnthropicModel(_Closing, AnthropicChatClient):
    def __init__(
        self, url: str | None, key: str | None, model: str, *, headers: Headers = NO_HEADERS,
        timeouts: Timeouts = DEFAULT_TIMEOUTS, **options: Any,
    ) -> None:  # fmt: skip
        provider = anthropic_provider(url, key, headers=headers, connect_seconds=timeouts.connect)
        super().__init__(provider, model, timeouts=timeouts, **options)
