"""Opens the configured models behind one interface."""

import contextlib
from collections.abc import AsyncGenerator, Callable

from dialog_engine.llm.context_tokens import context_tokens_of, room_of
from dialog_engine.llm.profiles import PROFILES, Profile, profile_of
from dialog_engine.llm.provider import Provider, Timeouts
from dialog_engine.llm.routing import Router
from dialog_engine.llm.settings import ModelSettings
from dialog_engine.tool_calls.ports import ModelObserver, OpenChat

MAX_RETRIES = 2
Wrap = Callable[[OpenChat, str], OpenChat]
"""Wraps one model, given its name, `provider:model`."""

Observe = Callable[[str], ModelObserver]
"""The observer of the model with this name."""


@contextlib.asynccontextmanager
async def open_llm(
    settings: ModelSettings, wrap: Wrap = lambda llm, _: llm, observe: Observe = lambda _: ModelObserver()
) -> AsyncGenerator[OpenChat]:
    """The configured chat models behind one interface, without tools. Closes their connections at the end of the block.

    Models of one provider share its connections.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    options = settings.options
    timeouts = Timeouts(
        options.model_connect_timeout_seconds, options.model_first_token_seconds, options.model_timeout_seconds
    )
    async with contextlib.AsyncExitStack() as stack:
        opened: dict[str, Provider] = {}
        models: dict[str, OpenChat] = {}
        for name in settings.every_model:
            kind, _, model = name.partition(":")
            provider = settings.providers.named(kind)
            if kind not in opened:
                opened[kind] = provider.open(timeouts.connect)
                stack.push_async_callback(opened[kind].close)
            # A model with a fallback is not retried: the fallback answers instead.
            last = not options.llm_fallbacks or name == options.llm_fallbacks[-1]
            client = provider.client()(
                opened[kind],
                model,
                profile=_profile(settings, kind, opened[kind].base_url, model),
                max_tokens=options.llm_max_tokens,
                timeouts=timeouts,
                max_retries=MAX_RETRIES if last else 0,
                observer=observe(name),
                extra_body=provider.extra_body,
            )
            models[name] = wrap(client.open, name)
        router = Router(
            models,
            settings.default_model,
            options.llm_fallbacks,
            cooldown_seconds=options.llm_cooldown_seconds,
            rooms=rooms_of(settings),
        )
        yield router.open


def rooms_of(settings: ModelSettings) -> dict[str, int]:
    """How many tokens a request to each model may have."""
    given = settings.options.context_tokens
    contexts = {name: given.get(name) or given.get("") or context_tokens_of(name) for name in settings.every_model}
    return {name: room_of(tokens, settings.options.llm_max_tokens) for name, tokens in contexts.items()}


def _profile(settings: ModelSettings, kind: str, base_url: str, model: str) -> Profile:
    """LLM_PROFILE is for the provider of the default model."""
    if settings.options.llm_profile and settings.default_model.startswith(f"{kind}:"):
        return profile_of(base_url, model, settings.options.llm_profile)
    of_cloud = settings.providers.named(kind).profile
    return PROFILES[of_cloud] if of_cloud else profile_of(base_url, model)
