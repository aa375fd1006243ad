"""The model's side of the engine, put together from its settings."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping

from pydantic import SecretStr

from dialog_engine.config import Settings
from dialog_engine.llm.anthropic_client import ANTHROPIC_URL, AnthropicChatClient
from dialog_engine.llm.openai_client import OPENAI_URL, OpenAIChatClient
from dialog_engine.llm.profiles import profile_of
from dialog_engine.llm.reading import Waits
from dialog_engine.llm.routing import Router
from dialog_engine.tool_calls.ports import StreamChat

RETRIES = 2
Wrap = Callable[[StreamChat, str], StreamChat]
"""Puts something around one model; told its name, `provider:model`."""


def as_it_is(llm: StreamChat, _: str) -> StreamChat:
    """Put nothing around a model."""
    return llm


@contextlib.asynccontextmanager
async def open_llm(settings: Settings, wrap: Wrap = as_it_is) -> AsyncGenerator[StreamChat]:
    """The chat models that are configured, as one, without tools; their connections are closed at the end of the block.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    async with contextlib.AsyncExitStack() as stack:
        models: dict[str, StreamChat] = {}
        for name in settings.every_model:
            # A model behind which stands another one is not asked again: the other one is.
            last = not settings.llm_fallbacks or name == settings.llm_fallbacks[-1]
            client = await stack.enter_async_context(_client(settings, name, RETRIES if last else 0))
            models[name] = wrap(client, name)
        router = Router(
            models, settings.default_model, settings.llm_fallbacks, rest_seconds=settings.llm_cooldown_seconds
        )
        yield router.stream_chat


@contextlib.asynccontextmanager
async def _client(settings: Settings, name: str, retries: int) -> AsyncGenerator[StreamChat]:
    provider, _, model = name.partition(":")
    override = settings.llm_profile if settings.default_model.startswith(f"{provider}:") else None
    if provider == "anthropic":
        url = settings.anthropic_base_url
        client = AnthropicChatClient(
            url,
            settings.anthropic_api_key.get_secret_value() if settings.anthropic_api_key else None,
            model,
            profile=profile_of(url or ANTHROPIC_URL, model, override),
            max_tokens=settings.llm_max_tokens,
            waits=waits_of(settings),
            max_retries=retries,
            extra_body=settings.anthropic_extra_body,
            headers=_plain(settings.anthropic_custom_headers),
        )
    else:
        url = settings.openai_base_url
        client = OpenAIChatClient(
            url,
            settings.openai_api_key.get_secret_value() if settings.openai_api_key else None,
            model,
            profile=profile_of(url or OPENAI_URL, model, override),
            max_tokens=settings.llm_max_tokens,
            waits=waits_of(settings),
            max_retries=retries,
            extra_body=settings.openai_extra_body,
            headers=_openai_account(settings) | _plain(settings.openai_custom_headers),
        )
    async with contextlib.aclosing(client):
        yield client.stream_chat


def _openai_account(settings: Settings) -> dict[str, str]:
    """Who is billed, where a key may ask for several."""
    fields = {"OpenAI-Organization": settings.openai_org_id, "OpenAI-Project": settings.openai_project_id}
    return {name: value for name, value in fields.items() if value}


def _plain(headers: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in headers.items()}


def waits_of(settings: Settings) -> Waits:
    """How long providers are waited for."""
    return Waits(
        settings.model_connect_timeout_seconds, settings.model_first_token_seconds, settings.model_timeout_seconds
    )
