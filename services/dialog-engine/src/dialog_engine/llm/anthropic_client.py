"""The client for Anthropic's Messages API: at Anthropic, at compatible servers, and on Google Cloud's Vertex AI."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import httpx2
from anthropic import AnthropicError, APIStatusError, AsyncAnthropic, AsyncStream, DefaultAioHttpClient, Omit
from anthropic.lib.bedrock import AsyncAnthropicBedrock
from anthropic.lib.vertex import AsyncAnthropicVertex

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.anthropic_decoding import AnthropicDecoder
from dialog_engine.llm.anthropic_encoding import encode_messages, encode_system, encode_tools, with_cache
from dialog_engine.llm.client import ChatClient, sampling_of
from dialog_engine.llm.connections import check_headers, open_connections, split_base_url
from dialog_engine.llm.decoding import Decoder
from dialog_engine.llm.profiles import Images
from dialog_engine.llm.provider import CHOICE, DEFAULT_TIMEOUTS, IMAGE, NO_KEY, Json, Provider
from dialog_engine.model import ANY_TOOL, ChatRequest, Sampling

ANTHROPIC_URL = "https://api.anthropic.com"
NO_HEADERS: Mapping[str, str] = {}
MAX_TOKENS = 16_384
"""The API requires a bound on every answer; each of its current models can write this much."""

# Options that some compatible servers refuse.
_CACHE = "cache_control"
_STOP = "stop_sequences"


def anthropic_provider(
    base_url: str | None,
    api_key: str | None,
    *,
    headers: Mapping[str, str] = NO_HEADERS,
    connect_seconds: float = DEFAULT_TIMEOUTS.connect,
) -> Provider:
    """Anthropic, or the compatible server at `base_url`, which may need no key. `headers`: see `openai_provider`.

    Raises:
        ConfigurationError: neither a key nor a base URL, or a value that cannot be sent.
    """
    if not api_key and not base_url:
        raise ConfigurationError("set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL for a server that needs no key")
    check_headers({"key": api_key or "", **headers})
    base = split_base_url(base_url or ANTHROPIC_URL)
    # The SDK sends the key as a bearer; many compatible servers look for it in the older field only.
    older = {"x-api-key": api_key} if api_key and base_url else {}
    sdk = AsyncAnthropic(
        api_key=api_key or NO_KEY,
        base_url=base.url,
        default_headers=without_empty({**older, **base.headers, **headers}),
        default_query=base.query,
        http_client=open_connections(DefaultAioHttpClient, connect_seconds),
        open_telemetry=False,
    )
    return provider_of(sdk, (api_key or "", *headers.values()))


def vertex_provider(
    project: str,
    region: str,
    *,
    base_url: str | None = None,
    headers: Mapping[str, str] = NO_HEADERS,
    connect_seconds: float = DEFAULT_TIMEOUTS.connect,
) -> Provider:
    """Claude on Vertex AI, with Google's application default credentials.

    Raises:
        ConfigurationError: the package for Google's credentials is not installed, or a value cannot be sent.
    """
    try:
        from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415 -- of an optional extra
    except ImportError:
        raise ConfigurationError(
            "VERTEX_MODEL needs Google's credentials package: install dialog-engine[vertex]"
        ) from None
    check_headers(headers)
    sdk = AsyncAnthropicVertex(
        project_id=project,
        region=region,
        base_url=base_url,
        default_headers=without_empty(headers),
        http_client=open_connections(DefaultAioHttpClient, connect_seconds),
        open_telemetry=False,
    )
    credential_help = (
        "no valid Google credentials were found for Vertex AI: set GOOGLE_APPLICATION_CREDENTIALS to a key file, run"
        " `gcloud auth application-default login`, or give this machine a service account"
    )
    return replace(
        provider_of(sdk, tuple(headers.values())),
        credential_errors=(cast("type[Exception]", GoogleAuthError), RuntimeError),
        credential_help=credential_help,
    )


def without_empty(headers: Mapping[str, str]) -> dict[str, str]:
    """Header fields for an SDK, which leaves one out only for `Omit`; its types do not say so."""
    return {name: value or cast("str", Omit()) for name, value in headers.items()}


MessagesSdk = AsyncAnthropic | AsyncAnthropicVertex | AsyncAnthropicBedrock


def provider_of(sdk: MessagesSdk, secrets: tuple[str, ...]) -> Provider:
    """The provider behind an SDK client with the Messages API."""

    async def post(body: Json, max_retries: int) -> httpx2.Response:
        response = await sdk.post(
            "/v1/messages",
            cast_to=httpx2.Response,
            body=body,
            options={"max_retries": max_retries},
            stream=True,
            stream_cls=AsyncStream[object],
        )
        return cast("httpx2.Response", response)

    return Provider(post, sdk.close, str(sdk.base_url), APIStatusError, AnthropicError, secrets)


class AnthropicChatClient(ChatClient):
    """A chat model with Anthropic's Messages API."""

    stop_option = _STOP

    def _wanted(self) -> frozenset[str]:
        return frozenset({_CACHE, CHOICE, _STOP, IMAGE})

    def _decoder(self) -> Decoder:
        return AnthropicDecoder(self._model, self._errors, self._provider.framing())

    def _body(self, request: ChatRequest, options: frozenset[str]) -> Json:
        # A server that cannot forbid calls is sent no tools for a last answer.
        tools = [] if request.answer_only and CHOICE not in options else encode_tools(request.tools)
        system, sampling = encode_system(request.messages), sampling_of(request)
        profile = self._profile
        if IMAGE not in options:
            profile = replace(profile, images=Images.REFERENCE, images_of_users=False)
        messages = encode_messages(request.messages, self._model, profile)
        if _CACHE in options:
            with_cache(system, tools, messages)
        body: Json = {
            "model": self._model,
            "max_tokens": min(self._max_tokens or MAX_TOKENS, sampling.max_tokens or MAX_TOKENS),
            "messages": messages,
            "stream": True,
        }
        if system:
            body["system"] = system
        if tools:
            body["tools"] = tools
            if request.answer_only:
                body["tool_choice"] = {"type": "none"}
            elif request.must_call:
                named = {"type": "tool", "name": request.must_call}
                body["tool_choice"] = {"type": "any"} if request.must_call == ANY_TOOL else named
        if request.stop and _STOP in options:
            body["stop_sequences"] = request.stop
        return body | self._extra_body | _sampled(sampling)


def _sampled(sampling: Sampling) -> Json:
    """How the sender wants the answer to be sampled. This API has neither a seed nor penalties nor this kind of effort:
    they ask for a likely answer, and are left out."""
    wanted: Json = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    schema = (sampling.response_format or {}).get("json_schema", {}).get("schema")
    if schema is not None:
        wanted["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return {name: value for name, value in wanted.items() if value is not None}
