"""The client for OpenAI and for every provider that speaks its chat completions."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any, cast

from openai import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncAPIResponse,
    AsyncOpenAI,
    AsyncStream,
    OpenAIError,
    Timeout,
    omit,
)
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam, ChatCompletionToolUnionParam

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.connections import provider_connections
from dialog_engine.llm.decoding import AnswerDecoder
from dialog_engine.llm.encoding import SIGNATURE, encode_messages, encode_tools
from dialog_engine.llm.failures import Failures, SdkErrors
from dialog_engine.llm.profiles import Images, Profile, profile_of
from dialog_engine.llm.reading import stream_answer
from dialog_engine.llm.waits import DEFAULT_WAITS, Waits
from dialog_engine.model import ChatRequest, LLMEvent

OPENAI_URL = "https://api.openai.com/v1"
_NO_KEY = "no-key"

# What some providers refuse, and an answer can be had without.
_USAGE = "stream_options"
_CHOICE = "tool_choice"
_IMAGES = "image_url"
_STOP = "stop"

_ERRORS = SdkErrors(APIStatusError, APITimeoutError, APIConnectionError, OpenAIError)
_Response = AsyncAPIResponse[AsyncStream[ChatCompletionChunk]]


class OpenAIChatClient:
    """A chat model behind an OpenAI-compatible endpoint.

    The SDK does transport, keys, retries and errors; the answer's bytes are decoded here, which is many times faster
    than its models. Certificates are checked against the operating system's store. Owns its connections: `aclose` it.

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
        self._extra_body = extra_body
        self._failures = Failures(api_key or "")
        self._profile = profile or profile_of(url, model)
        self._max_tokens = max_tokens
        self._options = _wanted(self._profile)
        self._client = AsyncOpenAI(
            api_key=api_key or _NO_KEY,
            base_url=url,
            timeout=Timeout(max(waits.first_token, waits.silence), connect=waits.connect),
            max_retries=max_retries,
            default_headers=extra_headers,
            http_client=provider_connections(),
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
        return stream_answer(
            partial(self._open, request), AnswerDecoder(self._failures), self._failures, _ERRORS, self._waits
        )

    async def _open(self, request: ChatRequest, stack: AsyncExitStack) -> _Response:
        """Send the request, again without those of its options that the provider says it does not know."""
        options = self._options
        while True:
            try:
                response = await self._send(stack, request, options)
                break
            except APIStatusError as error:
                refused = _refused(options, error, request)
                if not refused:
                    raise
                options -= refused
        self._options &= options
        return response

    async def _send(self, stack: AsyncExitStack, request: ChatRequest, options: frozenset[str]) -> _Response:
        profile = _without_refused(self._profile, options)
        limit = {} if self._max_tokens is None else {profile.length_field: self._max_tokens}
        # Where calls cannot be forbidden nothing is declared that could be called.
        tools = () if request.answer_only and _CHOICE not in options else encode_tools(request.tools)
        messages = encode_messages(request.messages, profile)
        return await stack.enter_async_context(
            self._client.chat.completions.with_streaming_response.create(
                model=self._model,
                messages=cast("list[ChatCompletionMessageParam]", messages),
                tools=cast("list[ChatCompletionToolUnionParam]", tools) or omit,
                tool_choice="none" if tools and request.answer_only else omit,
                stop=list(request.stop) if request.stop and _STOP in options else omit,
                stream=True,
                stream_options={"include_usage": True} if _USAGE in options else omit,
                extra_body={**limit, **(self._extra_body or {})} or None,
            )
        )


def _wanted(profile: Profile) -> frozenset[str]:
    """The options that this provider is asked for first."""
    differ = {
        _USAGE: profile.stream_usage,
        SIGNATURE: profile.thought_signatures,
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
        images=profile.images if _IMAGES in options else Images.REFERENCE,
    )


def _refused(options: frozenset[str], error: APIStatusError, request: ChatRequest) -> set[str]:
    """The options that the provider's complaint is about."""
    if error.status_code not in (400, 422):
        return set()
    words = str(error.body).lower()
    sent = options - (set() if request.answer_only else {_CHOICE}) - (set() if request.stop else {_STOP})
    return {name for name in sent if name in words or name.replace("_", " ") in words}
