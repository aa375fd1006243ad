"""The client for Anthropic, and for every server that speaks its Messages API."""

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any

import msgspec
from aiohttp import ClientResponse

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.anthropic_decoding import AnthropicDecoder
from dialog_engine.llm.anthropic_encoding import Json, encode_messages, encode_system, encode_tools, with_cache
from dialog_engine.llm.asking import Asker
from dialog_engine.llm.endpoint import Endpoint
from dialog_engine.llm.failures import Failures, RefusedError
from dialog_engine.llm.profiles import Profile, profile_of
from dialog_engine.llm.reading import stream_answer
from dialog_engine.llm.waits import DEFAULT_WAITS, Waits
from dialog_engine.model import ChatRequest, LLMEvent

ANTHROPIC_URL = "https://api.anthropic.com"
API_VERSION = "2026-10-21"
"""The version of the API that is spoken here."""
MAX_TOKENS = 16_384
"""The API wants a bound on every answer; each of its present models can write so much."""
_NO_KEY = "no-key"

# What some compatible servers refuse, and an answer can be had without.
_CACHE = "cache_control"
_CHOICE = "tool_choice"


class AnthropicChatClient:
    """A chat model behind the Anthropic Messages API.

    Owns its connections: `aclose` it. The arguments are those of OpenAIChatClient; `extra_body` may ask for thinking.

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
        self._extra_body = dict(extra_body or {})
        self._failures = Failures(api_key or "")
        self._options = frozenset({_CACHE, _CHOICE})
        private = {"Authorization": f"Bearer {api_key or _NO_KEY}"}
        if api_key and base_url:
            # Where the key stood before it was sent as a bearer: many compatible servers look there only.
            private["x-api-key"] = api_key
        self._asker = Asker(
            Endpoint(url, "/v1/messages", public={"anthropic-version": API_VERSION}, private=private),
            connect_seconds=waits.connect,
            max_retries=max_retries,
        )

    async def aclose(self) -> None:
        """Close the connections, when no answer is read any more."""
        await self._asker.aclose()

    def stream_chat(self, request: ChatRequest) -> AsyncGenerator[LLMEvent]:
        """Stream the model's answer: text and reasoning as they come, tool calls at the end, StreamEnd last.

        Closing the generator closes the stream at the provider.

        Raises:
            LLMError: the provider cannot be reached, refuses, breaks off, or answers nothing.
        """
        decoder = AnthropicDecoder(self._model, self._failures)
        return stream_answer(partial(self._open, request), decoder, self._failures, self._waits)

    async def _open(self, request: ChatRequest) -> ClientResponse:
        """Send the request, again without those of its options that the server says it does not know."""
        options = self._options
        while True:
            try:
                answer = await self._asker.ask(msgspec.json.encode(self._question(request, options)))
                break
            except RefusedError as error:
                complaint = str(error.body) if error.status in (400, 422) else ""
                refused = {name for name in options if name in complaint}
                if not refused:
                    raise
                options -= refused
        self._options &= options
        return answer

    def _question(self, request: ChatRequest, options: frozenset[str]) -> Json:
        # Where calls cannot be forbidden nothing is declared that could be called.
        tools = [] if request.answer_only and _CHOICE not in options else encode_tools(request.tools)
        system = encode_system(request.messages)
        messages = encode_messages(request.messages, self._model, self._profile)
        if _CACHE in options:
            with_cache(system, tools, messages)
        question: Json = {"model": self._model, "max_tokens": self._max_tokens, "messages": messages, "stream": True}
        if system:
            question["system"] = system
        if tools:
            question["tools"] = tools
            if request.answer_only:
                question["tool_choice"] = {"type": "none"}
        if request.stop:
            question["stop_sequences"] = request.stop
        return question | self._extra_body
