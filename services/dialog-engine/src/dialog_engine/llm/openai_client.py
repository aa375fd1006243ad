"""The client for OpenAI and for every provider that speaks its chat completions."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from aiohttp import ClientResponse

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.asking import Asker
from dialog_engine.llm.decoding import AnswerDecoder
from dialog_engine.llm.encoding import SIGNATURE, Json, encode_messages, encode_tools
from dialog_engine.llm.endpoint import Endpoint
from dialog_engine.llm.failures import Failures, RefusedError
from dialog_engine.llm.profiles import Images, Profile, profile_of
from dialog_engine.llm.reading import stream_answer
from dialog_engine.llm.reasoning_details import DETAILS
from dialog_engine.llm.waits import DEFAULT_WAITS, Waits
from dialog_engine.model import ChatRequest, LLMEvent

OPENAI_URL = "https://api.openai.com/v1"
_NO_KEY = "no-key"

# What some providers refuse, and an answer can be had without.
_USAGE = "stream_options"
_CHOICE = "tool_choice"
_IMAGES = "image_url"
_STOP = "stop"


class OpenAIChatClient:
    """A chat model behind an OpenAI-compatible endpoint.

    Owns its connections: `aclose` it. To be made where an event loop runs.

    `api_key` may be None with a `base_url` (local servers). `profile` is how it wants to be spoken to, by default what
    its address suggests. `max_tokens` bounds the answer; None leaves that to the provider. `waits` says how long for
    what is waited. `max_retries` counts retries before the first byte; after it nothing is retried. `extra_body` is
    merged into every request, such as a temperature.

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
        extra_headers: Mapping[str, str] | None = None,
    ) -> None:
        if not api_key and not base_url:
            raise ConfigurationError("set OPENAI_API_KEY, or OPENAI_BASE_URL for a server that needs no key")
        url = base_url or OPENAI_URL
        self._model = model
        self._waits = waits
        self._extra_body = dict(extra_body or {})
        self._failures = Failures(api_key or "")
        self._profile = profile or profile_of(url, model)
        self._max_tokens = max_tokens
        self._options = _wanted(self._profile)
        private = {"Authorization": f"Bearer {api_key or _NO_KEY}", **(extra_headers or {})}
        self._asker = Asker(
            Endpoint(url, "/chat/completions", public={}, private=private),
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
        decoder = AnswerDecoder(self._failures, self._model)
        return stream_answer(partial(self._open, request), decoder, self._failures, self._waits)

    async def _open(self, request: ChatRequest) -> ClientResponse:
        """Send the request, again without those of its options that the provider says it does not know."""
        options = self._options
        while True:
            try:
                answer = await self._asker.ask(msgspec.json.encode(self._question(request, options)))
                break
            except RefusedError as error:
                refused = _refused(options, error, request)
                if not refused:
                    raise
                options -= refused
        self._options &= options
        return answer

    def _question(self, request: ChatRequest, options: frozenset[str]) -> Json:
        profile = _without_refused(self._profile, options)
        messages = encode_messages(request.messages, profile, self._model)
        question: Json = {"model": self._model, "messages": messages, "stream": True}
        # Where calls cannot be forbidden nothing is declared that could be called.
        if request.tools and (_CHOICE in options or not request.answer_only):
            question["tools"] = encode_tools(request.tools)
            if request.answer_only:
                question["tool_choice"] = "none"
        if request.stop and _STOP in options:
            question["stop"] = request.stop
        if _USAGE in options:
            question["stream_options"] = {"include_usage": True}
        if self._max_tokens is not None:
            question[profile.length_field] = self._max_tokens
        return question | self._extra_body


def _wanted(profile: Profile) -> frozenset[str]:
    """The options that this provider is asked for first."""
    differ = {
        _USAGE: profile.stream_usage,
        SIGNATURE: profile.thought_signatures,
        DETAILS: profile.reasoning_details,
        _IMAGES: profile.images is Images.AFTER_RESULTS,
        profile.reasoning_field or "": profile.reasoning_field is not None,
    }
    return frozenset({_CHOICE, _STOP, *(name for name, wanted in differ.items() if wanted)})


def _without_refused(profile: Profile, options: frozenset[str]) -> Profile:
    """The profile with what is still wanted of it."""
    return replace(
        profile,
        reasoning_field=profile.reasoning_field if profile.reasoning_field in options else None,
        thought_signatures=SIGNATURE in options,
        reasoning_details=DETAILS in options,
        images=profile.images if _IMAGES in options else Images.REFERENCE,
    )


def _refused(options: frozenset[str], error: RefusedError, request: ChatRequest) -> set[str]:
    """The options that the provider's complaint is about."""
    if error.status not in (400, 422):
        return set()
    words = str(error.body).lower()
    sent = options - (set() if request.answer_only else {_CHOICE}) - (set() if request.stop else {_STOP})
    return {name for name in sent if name in words or name.replace("_", " ") in words}
