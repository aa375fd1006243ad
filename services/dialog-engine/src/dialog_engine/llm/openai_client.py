"""The client for OpenAI, for Azure OpenAI, and for every provider with an API compatible to their chat completions."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import cast

import httpx2
from openai import APIStatusError, AsyncAzureOpenAI, AsyncOpenAI, AsyncStream, DefaultAioHttpClient, Omit, OpenAIError

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.client import (
    CHOICE,
    DEFAULT_TIMEOUTS,
    IMAGE,
    NO_KEY,
    ChatClient,
    Json,
    Provider,
)
from dialog_engine.llm.connections import check_headers, open_connections, split_base_url
from dialog_engine.llm.decoding import Decoder
from dialog_engine.llm.openai_decoding import OpenAIDecoder
from dialog_engine.llm.openai_encoding import (
    SIGNATURE,
    encode_messages,
    encode_tools,
    has_long_description,
    with_descriptions_in_instructions,
)
from dialog_engine.llm.openai_wire import DETAILS
from dialog_engine.llm.profiles import Images, Profile
from dialog_engine.model import ChatRequest

OPENAI_URL = "https://api.openai.com/v1"
NO_HEADERS: Mapping[str, str] = {}

# Options that some providers refuse.
_USAGE = "stream_options"
_IMAGE_URL = "image_url"
_STOP = "stop"
_DESCRIPTION = "description"
_OTHER_LENGTH = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""The field for the longest answer where the other one is refused: behind a gateway it cannot be known beforehand."""


def openai_provider(
    base_url: str | None,
    api_key: str | None,
    *,
    headers: Mapping[str, str] = NO_HEADERS,
    organization: str | None = None,
    project: str | None = None,
    connect_seconds: float = DEFAULT_TIMEOUTS.connect,
) -> Provider:
    """OpenAI, or the compatible server at `base_url`, which may need no key.

    `headers` are more header fields; they replace those of the SDK of the same name, and an empty one removes it.

    Raises:
        ConfigurationError: neither a key nor a base URL, or a value that cannot be sent.
    """
    if not api_key and not base_url:
        raise ConfigurationError("set OPENAI_API_KEY, or OPENAI_BASE_URL for a server that needs no key")
    check_headers({"key": api_key or "", **headers})
    base = split_base_url(base_url or OPENAI_URL)
    sdk = AsyncOpenAI(
        api_key=api_key or NO_KEY,
        base_url=base.url,
        organization=organization,
        project=project,
        default_query=base.query,
        http_client=open_connections(DefaultAioHttpClient, connect_seconds),
    )
    return _provider(sdk, api_key or "", {**base.headers, **headers})


def azure_provider(
    endpoint: str,
    api_key: str,
    api_version: str,
    *,
    headers: Mapping[str, str] = NO_HEADERS,
    connect_seconds: float = DEFAULT_TIMEOUTS.connect,
) -> Provider:
    """Azure OpenAI at `endpoint`, such as https://<resource>.openai.azure.com. Its models are named by deployment.

    Raises:
        ConfigurationError: a value cannot be sent.
    """
    check_headers({"key": api_key, **headers})
    sdk = AsyncAzureOpenAI(
        azure_endpoint=endpoint,
        api_key=api_key,
        api_version=api_version,
        http_client=open_connections(DefaultAioHttpClient, connect_seconds),
    )
    return _provider(sdk, api_key, headers)


def _provider(sdk: AsyncOpenAI, key: str, headers: Mapping[str, str]) -> Provider:
    # The SDK allows its Authorization field to be removed with a request only, not for all requests of a client.
    sent = {name: value or Omit() for name, value in headers.items()}

    async def post(body: Json, max_retries: int) -> httpx2.Response:
        response = await sdk.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            body=body,
            options={"max_retries": max_retries, "headers": sent},
            stream=True,
            stream_cls=AsyncStream[object],
        )
        return cast("httpx2.Response", response)

    return Provider(post, sdk.close, str(sdk.base_url), APIStatusError, OpenAIError, (key, *headers.values()))


class OpenAIChatClient(ChatClient):
    """A chat model with OpenAI's chat completions."""

    stop_option = _STOP

    def _wanted(self) -> frozenset[str]:
        profile = self._profile
        by_profile = {
            _USAGE: profile.stream_usage,
            SIGNATURE: profile.thought_signatures,
            DETAILS: profile.reasoning_details,
            _IMAGE_URL: profile.images is Images.AFTER_RESULTS,
            IMAGE: profile.images is Images.AFTER_RESULTS,
            profile.reasoning_field or "": profile.reasoning_field is not None,
            profile.length_field: bool(self._max_tokens),
        }
        return frozenset({CHOICE, _STOP, _DESCRIPTION, *(name for name, wanted in by_profile.items() if wanted)})

    def _decoder(self) -> Decoder:
        return OpenAIDecoder(self._errors, self._model)

    def _sent(self, request: ChatRequest, options: frozenset[str]) -> Iterable[str]:
        long = has_long_description(request)
        return (name for name in super()._sent(request, options) if long or name != _DESCRIPTION)

    def _body(self, request: ChatRequest, options: frozenset[str]) -> Json:
        if _DESCRIPTION not in options:
            request = with_descriptions_in_instructions(request)
        profile = _without_refused(self._profile, options)
        messages = encode_messages(request.messages, profile, self._model)
        body: Json = {"model": self._model, "messages": messages, "stream": True}
        # A provider that cannot forbid calls is sent no tools for a last answer.
        if request.tools and (CHOICE in options or not request.answer_only):
            body["tools"] = encode_tools(request.tools)
            if request.answer_only:
                body["tool_choice"] = "none"
        if request.stop and _STOP in options:
            body["stop"] = request.stop
        if _USAGE in options:
            body["stream_options"] = {"include_usage": True}
        if self._max_tokens is not None:
            field = profile.length_field
            body[field if field in options else _OTHER_LENGTH[field]] = self._max_tokens
        return body | self._extra_body


def _without_refused(profile: Profile, options: frozenset[str]) -> Profile:
    """The profile without the options that were refused."""
    return replace(
        profile,
        reasoning_field=profile.reasoning_field if profile.reasoning_field in options else None,
        thought_signatures=SIGNATURE in options,
        reasoning_details=DETAILS in options,
        images=profile.images if {_IMAGE_URL, IMAGE} <= options else Images.REFERENCE,
    )
