"""The client for Anthropic, and for every server that speaks its Messages API."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.anthropic_decoding import AnthropicDecoder
from dialog_engine.llm.anthropic_encoding import encode_messages, encode_system, encode_tools, with_cache
from dialog_engine.llm.client import CHOICE, IMAGE, ChatClient, Json, bearer
from dialog_engine.llm.endpoint import Endpoint
from dialog_engine.llm.failures import Failures
from dialog_engine.llm.profiles import Images, Profile, profile_of
from dialog_engine.llm.reading import DEFAULT_WAITS, Decoder, Waits
from dialog_engine.model import ChatRequest

ANTHROPIC_URL = "https://api.anthropic.com"
API_VERSION = "2026-10-21"
"""The version of the API that is spoken here."""
MAX_TOKENS = 16_384
"""The API wants a bound on every answer; each of its present models can write so much."""

# What some compatible servers refuse, and an answer can be had without.
_CACHE = "cache_control"
_STOP = "stop_sequences"


class AnthropicChatClient(ChatClient):
    """A chat model behind the Anthropic Messages API.

    The arguments are those of OpenAIChatClient; `extra_body` may ask for thinking.

    Raises:
        ConfigurationError: neither a key nor a base URL.
    """

    stop_option = _STOP

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
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if not api_key and not base_url:
            raise ConfigurationError("set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL for a server that needs no key")
        url = base_url or ANTHROPIC_URL
        self._model = model
        self._profile = profile or profile_of(url, model)
        self._max_tokens = max_tokens or MAX_TOKENS
        self._extra_body = dict(extra_body or {})
        private = bearer(api_key)
        if api_key and base_url:
            # Where the key stood before it was sent as a bearer: many compatible servers look there only.
            private["x-api-key"] = api_key
        public = {"anthropic-version": API_VERSION}
        super().__init__(
            Endpoint(url, "/v1/messages", public=public, private=private, own=headers or {}),
            Failures(api_key or "", *(headers or {}).values()),
            frozenset({_CACHE, CHOICE, _STOP, IMAGE}),
            waits,
            max_retries,
        )

    def _decoder(self) -> Decoder:
        return AnthropicDecoder(self._model, self._failures)

    def _question(self, request: ChatRequest, options: frozenset[str]) -> Json:
        # Where calls cannot be forbidden nothing is declared that could be called.
        tools = [] if request.answer_only and CHOICE not in options else encode_tools(request.tools)
        system = encode_system(request.messages)
        profile = self._profile if IMAGE in options else replace(self._profile, images=Images.REFERENCE)
        messages = encode_messages(request.messages, self._model, profile)
        if _CACHE in options:
            with_cache(system, tools, messages)
        question: Json = {"model": self._model, "max_tokens": self._max_tokens, "messages": messages, "stream": True}
        if system:
            question["system"] = system
        if tools:
            question["tools"] = tools
            if request.answer_only:
                question["tool_choice"] = {"type": "none"}
        if request.stop and _STOP in options:
            question["stop_sequences"] = request.stop
        return question | self._extra_body
