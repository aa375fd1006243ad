"""The client for OpenAI and for every provider that speaks its chat completions."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.client import CHOICE, IMAGE, ChatClient, Json, bearer
from dialog_engine.llm.decoding import AnswerDecoder
from dialog_engine.llm.descriptions import any_is_long, with_long_ones_apart
from dialog_engine.llm.encoding import SIGNATURE, encode_messages, encode_tools
from dialog_engine.llm.endpoint import Endpoint
from dialog_engine.llm.failures import Failures
from dialog_engine.llm.profiles import Images, Profile, profile_of
from dialog_engine.llm.reading import DEFAULT_WAITS, Decoder, Waits
from dialog_engine.llm.reasoning_details import DETAILS
from dialog_engine.model import ChatRequest

OPENAI_URL = "https://api.openai.com/v1"

# What some providers refuse, and an answer can be had without.
_USAGE = "stream_options"
_IMAGE_URL = "image_url"
_STOP = "stop"
_DESCRIPTION = "description"
_OTHER_LENGTH = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""What bounds an answer where that field is refused: behind a gateway nobody can tell beforehand which is taken."""


class OpenAIChatClient(ChatClient):
    """A chat model behind an OpenAI-compatible endpoint.

    `api_key` may be None with a `base_url` (local servers). `profile` is how it wants to be spoken to, by default what
    its address suggests. `max_tokens` bounds the answer; None leaves that to the provider. `waits` says how long for
    what is waited. `max_retries` counts retries before the first byte; after it nothing is retried. `extra_body` is
    merged into every request, such as a temperature; `headers` are more header fields, where those of the same name
    take the place of ours, and empty ones leave them out.

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
            raise ConfigurationError("set OPENAI_API_KEY, or OPENAI_BASE_URL for a server that needs no key")
        url = base_url or OPENAI_URL
        self._model = model
        self._extra_body = dict(extra_body or {})
        self._profile = profile or profile_of(url, model)
        self._max_tokens = max_tokens
        super().__init__(
            Endpoint(url, "/chat/completions", public={}, private=bearer(api_key), own=headers or {}),
            Failures(api_key or "", *(headers or {}).values()),
            _wanted(self._profile) | frozenset({self._profile.length_field} if max_tokens else ()),
            waits,
            max_retries,
        )

    def _decoder(self) -> Decoder:
        return AnswerDecoder(self._failures, self._model)

    def _sent(self, request: ChatRequest, options: frozenset[str]) -> Iterable[str]:
        long = any_is_long(request)
        return (name for name in super()._sent(request, options) if long or name != _DESCRIPTION)

    def _question(self, request: ChatRequest, options: frozenset[str]) -> Json:
        if _DESCRIPTION not in options:
            request = with_long_ones_apart(request)
        profile = _without_refused(self._profile, options)
        messages = encode_messages(request.messages, profile, self._model)
        question: Json = {"model": self._model, "messages": messages, "stream": True}
        # Where calls cannot be forbidden nothing is declared that could be called.
        if request.tools and (CHOICE in options or not request.answer_only):
            question["tools"] = encode_tools(request.tools)
            if request.answer_only:
                question["tool_choice"] = "none"
        if request.stop and _STOP in options:
            question["stop"] = request.stop
        if _USAGE in options:
            question["stream_options"] = {"include_usage": True}
        if self._max_tokens is not None:
            field = profile.length_field
            question[field if field in options else _OTHER_LENGTH[field]] = self._max_tokens
        return question | self._extra_body


def _wanted(profile: Profile) -> frozenset[str]:
    """The options that this provider is asked for first."""
    differ = {
        _USAGE: profile.stream_usage,
        SIGNATURE: profile.thought_signatures,
        DETAILS: profile.reasoning_details,
        _IMAGE_URL: profile.images is Images.AFTER_RESULTS,
        IMAGE: profile.images is Images.AFTER_RESULTS,
        profile.reasoning_field or "": profile.reasoning_field is not None,
    }
    return frozenset({CHOICE, _STOP, _DESCRIPTION, *(name for name, wanted in differ.items() if wanted)})


def _without_refused(profile: Profile, options: frozenset[str]) -> Profile:
    """The profile with what is still wanted of it."""
    return replace(
        profile,
        reasoning_field=profile.reasoning_field if profile.reasoning_field in options else None,
        thought_signatures=SIGNATURE in options,
        reasoning_details=DETAILS in options,
        images=profile.images if {_IMAGE_URL, IMAGE} <= options else Images.REFERENCE,
    )
