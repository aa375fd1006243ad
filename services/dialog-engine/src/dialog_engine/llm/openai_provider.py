"""Accounts at OpenAI, at Azure OpenAI, and at every provider with an API compatible to their chat completions."""

from collections.abc import Mapping

from openai import AsyncAzureOpenAI, AsyncOpenAI, DefaultAioHttpClient

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.connections import check_headers, open_connections, split_base_url
from dialog_engine.llm.openai_client import provider_of
from dialog_engine.llm.provider import DEFAULT_TIMEOUTS, NO_KEY, Provider

OPENAI_URL = "https://api.openai.com/v1"
NO_HEADERS: Mapping[str, str] = {}


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
    return provider_of(sdk, api_key or "", {**base.headers, **headers})


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
    return provider_of(sdk, api_key, headers)
