"""Clients of one model each, with a provider of their own: close them with `aclose`."""

from collections.abc import Mapping
from typing import Any

from dialog_engine.llm.anthropic_client import AnthropicChatClient, anthropic_provider
from dialog_engine.llm.openai_client import OpenAIChatClient
from dialog_engine.llm.openai_provider import NO_HEADERS, openai_provider
from dialog_engine.llm.provider import DEFAULT_TIMEOUTS, Timeouts


class OpenAIModel(OpenAIChatClient):
    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        model: str,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        **options: Any,
    ) -> None:
        provider = openai_provider(base_url, api_key, headers=headers, connect_seconds=timeouts.connect)
        super().__init__(provider, model, timeouts=timeouts, **options)

    async def aclose(self) -> None:
        await self._provider.close()


class AnthropicModel(AnthropicChatClient):
    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        model: str,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        **options: Any,
    ) -> None:
        provider = anthropic_provider(base_url, api_key, headers=headers, connect_seconds=timeouts.connect)
        super().__init__(provider, model, timeouts=timeouts, **options)

    async def aclose(self) -> None:
        await self._provider.close()
