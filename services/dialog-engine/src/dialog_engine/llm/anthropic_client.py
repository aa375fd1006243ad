"""The client for Anthropic, and for every server that speaks its Messages API."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, cast

from anthropic import (
    AnthropicError,
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncAnthropic,
    Timeout,
    omit,
)
from anthropic.types import MessageParam, TextBlockParam, ToolChoiceNoneParam, ToolParam

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.anthropic_decoding import AnthropicDecoder
from dialog_engine.llm.anthropic_encoding import encode_messages, encode_system, encode_tools, with_cache
from dialog_engine.llm.connections import provider_connections
from dialog_engine.llm.failures import Failures, SdkErrors
from dialog_engine.llm.profiles import Profile, profile_of
from dialog_engine.llm.reading import Answer, stream_answer
from dialog_engine.llm.waits import DEFAULT_WAITS, Waits
from dialog_engine.model import ChatRequest, LLMEvent

ANTHROPIC_URL = "https://api.anthropic.com"
MAX_TOKENS = 16_384
"""The API wants a bound on every answer; each of its present models can write so much."""
_NO_KEY = "no-key"

# What some compatible servers refuse, and an answer can be had without.
_CACHE = "cache_control"
_CHOICE = "tool_choice"

_ERRORS = SdkErrors(APIStatusError, APITimeoutError, APIConnectionError, AnthropicError)


class AnthropicChatClient:
    """A chat model behind the Anthropic Messages API.

    The SDK does transport, keys, retries and errors; the answer's bytes are decoded here. Owns its connections:
    `aclose` it. The arguments are those of OpenAIChatClient; `extra_body` may ask for thinking.

    Raises:
        ConfigurationError: neither a key nor a base URL.
    """

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        model: str,
        *,
        profile: Profile | None = None,
        max_tokens: int | None = None,
        waits: Waits = DEFAULT_WAITS,
        max_retries: int = 2,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if not api_key and not base_url:
            raise ConfigurationError("set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL for a server that needs no key")
        url = base_url or ANTHROPIC_URL
        self._model = model
        self._waits = waits
        self._profile = profile or profile_of(url, model)
        self._max_tokens = max_tokens or MAX_TOKENS
        self._extra_body = extra_body
        self._failures = Failures(api_key or "")
        self._options = frozenset({_CACHE, _CHOICE})
        self._client = AsyncAnthropic(
            api_key=api_key or _NO_KEY,
            base_url=url,
            timeout=Timeout(max(waits.first_token, waits.silence), connect=waits.connect),
            max_retries=max_retries,
            # Where the key stood before the SDK sent it as a bearer: many compatible servers look there only.
            default_headers={"x-api-key": api_key} if api_key and base_url else None,
            http_client=provider_connections(),
            open_telemetry=False,
        )

    async def aclose(self) -> None:
        """Close the connections; streams that are still open break off."""
        await self._client.close()

    def stream_chat(self, request: ChatRequest) -> AsyncGenerator[LLMEvent]:
        """Stream the model's answer: text and reasoning as they come, tool calls at the end, StreamEnd last.

        Closing the generator closes the stream at the provider.

        Raises:
            LLMError: the provider cannot be reached, refuses, breaks off, or answers nothing.
        """
        decoder = AnthropicDecoder(self._model, self._failures)
        return stream_answer(partial(self._open, request), decoder, self._failures, _ERRORS, self._waits)

    async def _open(self, request: ChatRequest, stack: AsyncExitStack) -> Answer:
        """Send the request, again without those of its options that the server says it does not know."""
        options = self._options
        while True:
            try:
                response = await self._send(stack, request, options)
                break
            except APIStatusError as error:
                complaint = str(error.body) if error.status_code in (400, 422) else ""
                refused = {name for name in options if name in complaint}
                if not refused:
                    raise
                options -= refused
        self._options &= options
        return response

    async def _send(self, stack: AsyncExitStack, request: ChatRequest, options: frozenset[str]) -> Answer:
        # Where calls cannot be forbidden nothing is declared that could be called.
        tools = [] if request.answer_only and _CHOICE not in options else encode_tools(request.tools)
        system = encode_system(request.messages)
        messages = encode_messages(request.messages, self._model, self._profile)
        if _CACHE in options:
            with_cache(system, tools, messages)
        return await stack.enter_async_context(
            self._client.messages.with_streaming_response.create(
                model=self._model,
                max_tokens=self._max_tokens,
                system=cast("list[TextBlockParam]", system) or omit,
                messages=cast("list[MessageParam]", messages),
                tools=cast("list[ToolParam]", tools) or omit,
                tool_choice=ToolChoiceNoneParam(type="none") if tools and request.answer_only else omit,
                stop_sequences=list(request.stop) or omit,
                stream=True,
                extra_body=self._extra_body,
            )
        )
