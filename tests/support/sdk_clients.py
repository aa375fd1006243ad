"""The same questions asked through the official SDKs: what our own requests to providers are compared with."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import anthropic
import httpx2
import openai

from dialog_engine.errors import LLMError
from dialog_engine.llm import anthropic_encoding, encoding
from dialog_engine.llm.anthropic_client import MAX_TOKENS, AnthropicChatClient
from dialog_engine.llm.openai_client import OpenAIChatClient
from dialog_engine.llm.profiles import profile_of
from dialog_engine.model import ChatRequest

MODEL = "model"
KEY = "hunter2-Hunter2"


class Ask(Protocol):
    """Asks once, with its retries, and tells of no failure: what counts is what has come to the server."""

    async def __call__(self, request: ChatRequest) -> None:
        """Ask."""
        ...


@asynccontextmanager
async def ours(
    protocol: str, url: str | None, key: str | None, retries: int, body: Mapping[str, Any]
) -> AsyncGenerator[Ask]:
    """Ask as the engine does."""
    kind = OpenAIChatClient if protocol == "openai" else AnthropicChatClient
    client = kind(url, key, MODEL, max_retries=retries, extra_body=body)

    async def ask(request: ChatRequest) -> None:
        with suppress(LLMError):
            async for _ in client.stream_chat(request):
                pass

    yield ask
    await client.aclose()


@asynccontextmanager
async def sdk(
    protocol: str, url: str, key: str | None, retries: int, body: Mapping[str, Any], *, official: bool = False
) -> AsyncGenerator[Ask]:
    """Ask through the SDK, its own way. Who is not `official` is shown the key in `x-api-key` too."""
    shown = {"x-api-key": key} if key and not official else {}
    by_openai, by_anthropic = _by_openai(url, key, retries, body), _by_anthropic(url, key, retries, body, shown)
    async with by_openai if protocol == "openai" else by_anthropic as ask:
        yield ask


@asynccontextmanager
async def _by_openai(url: str, key: str | None, retries: int, body: Mapping[str, Any]) -> AsyncGenerator[Ask]:
    profile = profile_of(url, MODEL)
    async with openai.AsyncOpenAI(api_key=key or "no-key", base_url=url, max_retries=retries) as client:

        async def ask(request: ChatRequest) -> None:
            tools: Any = encoding.encode_tools(request.tools)
            messages: Any = encoding.encode_messages(request.messages, profile)
            with suppress(openai.OpenAIError, httpx2.HTTPError):
                stream = await client.chat.completions.create(
                    model=MODEL,
                    messages=messages,
                    tools=tools or openai.omit,
                    tool_choice="none" if tools and request.answer_only else openai.omit,
                    stop=list(request.stop) or openai.omit,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body=body,
                )
                async for _ in stream:
                    pass

        yield ask


@asynccontextmanager
async def _by_anthropic(
    url: str, key: str | None, retries: int, body: Mapping[str, Any], headers: Mapping[str, str]
) -> AsyncGenerator[Ask]:
    profile = profile_of(url, MODEL)
    async with anthropic.AsyncAnthropic(
        api_key=key or "no-key",
        base_url=url,
        max_retries=retries,
        default_headers=headers,
        open_telemetry=False,
    ) as client:

        async def ask(request: ChatRequest) -> None:
            tools: Any = anthropic_encoding.encode_tools(request.tools)
            system: Any = anthropic_encoding.encode_system(request.messages)
            messages: Any = anthropic_encoding.encode_messages(request.messages, MODEL, profile)
            anthropic_encoding.with_cache(system, tools, messages)
            with suppress(anthropic.AnthropicError, httpx2.HTTPError):
                stream = await client.messages.create(
                    model=MODEL,
                    max_tokens=MAX_TOKENS,
                    system=system or anthropic.omit,
                    messages=messages,
                    tools=tools or anthropic.omit,
                    tool_choice={"type": "none"} if tools and request.answer_only else anthropic.omit,
                    stop_sequences=list(request.stop) or anthropic.omit,
                    stream=True,
                    extra_body=body,
                )
                async for _ in stream:
                    pass

        yield ask
