"""The providers of models, opened from their settings. To add one: a function that opens it, and its settings."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping

from pydantic import SecretStr

from dialog_engine.config import Settings
from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.client import ChatClient, Provider, Timeouts
from dialog_engine.llm.context_tokens import context_tokens_of, room_of
from dialog_engine.llm.profiles import PROFILES, Profile, profile_of
from dialog_engine.llm.routing import Router
from dialog_engine.tool_calls.ports import ModelObserver, OpenChat

# Each SDK is imported by the first provider that needs it: together they take seconds, and 80 MB.

MAX_RETRIES = 2
Wrap = Callable[[OpenChat, str], OpenChat]
"""Wraps one model, given its name, `provider:model`."""

Observe = Callable[[str], ModelObserver]
"""The observer of the model with this name."""


@contextlib.asynccontextmanager
async def open_llm(
    settings: Settings, wrap: Wrap = lambda llm, _: llm, observe: Observe = lambda _: ModelObserver()
) -> AsyncGenerator[OpenChat]:
    """The configured chat models behind one interface, without tools. Closes their connections at the end of the block.

    Models of one provider share its connections.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    async with contextlib.AsyncExitStack() as stack:
        providers: dict[str, Provider] = {}
        models: dict[str, OpenChat] = {}
        for name in settings.every_model:
            kind, _, model = name.partition(":")
            if kind not in providers:
                providers[kind] = _OPEN[kind](settings)
                stack.push_async_callback(providers[kind].close)
            # A model with a fallback is not retried: the fallback answers instead.
            last = not settings.llm_fallbacks or name == settings.llm_fallbacks[-1]
            max_retries = MAX_RETRIES if last else 0
            client = _client(settings, kind, providers[kind], model, max_retries, observe(name))
            models[name] = wrap(client.open, name)
        router = Router(
            models,
            settings.default_model,
            settings.llm_fallbacks,
            cooldown_seconds=settings.llm_cooldown_seconds,
            rooms=rooms_of(settings),
        )
        yield router.open


def rooms_of(settings: Settings) -> dict[str, int]:
    """How many tokens a request to each model may have."""
    contexts = {
        name: settings.context_tokens.get(name) or settings.context_tokens.get("") or context_tokens_of(name)
        for name in settings.every_model
    }
    return {name: room_of(tokens, settings.llm_max_tokens) for name, tokens in contexts.items()}


def timeouts_of(settings: Settings) -> Timeouts:
    """How long providers are waited for."""
    return Timeouts(
        settings.model_connect_timeout_seconds, settings.model_first_token_seconds, settings.model_timeout_seconds
    )


def _client(
    settings: Settings, kind: str, provider: Provider, model: str, max_retries: int, observer: ModelObserver
) -> ChatClient:
    if kind in ("openai", "azure"):
        from dialog_engine.llm.openai_client import OpenAIChatClient as Client  # noqa: PLC0415 -- see above

        extra_body = settings.openai_extra_body
    else:
        from dialog_engine.llm.anthropic_client import AnthropicChatClient as Client  # noqa: PLC0415 -- see above

        extra_body = settings.anthropic_extra_body
    return Client(
        provider,
        model,
        profile=_profile(settings, kind, provider, model),
        max_tokens=settings.llm_max_tokens,
        timeouts=timeouts_of(settings),
        max_retries=max_retries,
        observer=observer,
        extra_body=extra_body,
    )


def _profile(settings: Settings, kind: str, provider: Provider, model: str) -> Profile:
    """LLM_PROFILE is for the provider of the default model; the clouds serve the models of one maker at any address."""
    if settings.llm_profile and settings.default_model.startswith(f"{kind}:"):
        return profile_of(provider.base_url, model, settings.llm_profile)
    match kind:
        case "azure":
            return PROFILES["openai"]
        case "bedrock" | "vertex":
            return PROFILES["anthropic"]
        case _:
            return profile_of(provider.base_url, model)


def _openai(settings: Settings) -> Provider:
    from dialog_engine.llm.openai_client import openai_provider  # noqa: PLC0415 -- see above

    return openai_provider(
        settings.openai_base_url,
        _secret(settings.openai_api_key),
        headers=_plain(settings.openai_custom_headers),
        organization=settings.openai_org_id,
        project=settings.openai_project_id,
        connect_seconds=settings.model_connect_timeout_seconds,
    )


def _azure(settings: Settings) -> Provider:
    from dialog_engine.llm.openai_client import azure_provider  # noqa: PLC0415 -- see above

    return azure_provider(
        settings.azure_openai_endpoint or "",
        _secret(settings.azure_openai_api_key) or "",
        settings.azure_openai_api_version or "",
        headers=_plain(settings.openai_custom_headers),
        connect_seconds=settings.model_connect_timeout_seconds,
    )


def _anthropic(settings: Settings) -> Provider:
    from dialog_engine.llm.anthropic_client import anthropic_provider  # noqa: PLC0415 -- see above

    return anthropic_provider(
        settings.anthropic_base_url,
        _secret(settings.anthropic_api_key),
        headers=_plain(settings.anthropic_custom_headers),
        connect_seconds=settings.model_connect_timeout_seconds,
    )


def _bedrock(settings: Settings) -> Provider:
    try:
        from dialog_engine.llm.bedrock import AwsCredentials, bedrock_provider  # noqa: PLC0415 -- see above
    except ImportError:
        raise ConfigurationError("BEDROCK_MODEL needs the AWS SDK: install dialog-engine[bedrock]") from None
    bearer = _secret(settings.aws_bearer_token_bedrock)
    credentials = AwsCredentials(
        settings.aws_access_key_id,
        _secret(settings.aws_secret_access_key),
        _secret(settings.aws_session_token),
        settings.aws_profile,
    )
    return bedrock_provider(
        settings.aws_region or "",
        AwsCredentials(bearer_token=bearer) if bearer else credentials,
        base_url=settings.anthropic_bedrock_base_url,
        headers=_plain(settings.anthropic_custom_headers),
        connect_seconds=settings.model_connect_timeout_seconds,
    )


def _vertex(settings: Settings) -> Provider:
    from dialog_engine.llm.anthropic_client import vertex_provider  # noqa: PLC0415 -- see above

    return vertex_provider(
        settings.anthropic_vertex_project_id or "",
        settings.cloud_ml_region or "",
        base_url=settings.anthropic_vertex_base_url,
        headers=_plain(settings.anthropic_custom_headers),
        connect_seconds=settings.model_connect_timeout_seconds,
    )


_OPEN: Mapping[str, Callable[[Settings], Provider]] = {
    "openai": _openai,
    "azure": _azure,
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "vertex": _vertex,
}


def _secret(value: SecretStr | None) -> str | None:
    return value.get_secret_value() if value else None


def _plain(headers: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in headers.items()}
