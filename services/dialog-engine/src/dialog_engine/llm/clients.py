"""The model's side of the engine, put together from its settings."""

import contextlib
from collections.abc import AsyncGenerator

from dialog_engine.config import Settings
from dialog_engine.llm.openai_client import OpenAIChatClient
from dialog_engine.llm.waits import Waits
from dialog_engine.tool_calls.ports import StreamChat


@contextlib.asynccontextmanager
async def open_llm(settings: Settings) -> AsyncGenerator[StreamChat]:
    """A chat model as it is configured, without tools; its connections are closed at the end of the block."""
    key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else None
    client = OpenAIChatClient(settings.openai_base_url, key, settings.openai_model, waits=waits_of(settings))
    async with contextlib.aclosing(client):
        yield client.stream_chat


def waits_of(settings: Settings) -> Waits:
    """How long providers are waited for."""
    return Waits(
        settings.model_connect_timeout_seconds, settings.model_first_token_seconds, settings.model_timeout_seconds
    )
