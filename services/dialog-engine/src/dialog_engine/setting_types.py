"""Kinds of values that settings have, and how they are written."""

import ipaddress
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr
from pydantic_settings import NoDecode

PROVIDERS = ("openai", "anthropic", "azure", "bedrock", "vertex")

_FIELD_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"


def _url(url: str, *schemes: str) -> str:
    if not url.startswith(tuple(f"{scheme}://" for scheme in schemes)):
        raise ValueError(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    try:
        host, _ = urlsplit(url).hostname, urlsplit(url).port
    except ValueError as error:
        raise ValueError(f"is not a URL: {error}") from None
    if not host:
        raise ValueError("has no host")
    return url


def _postgres_url(url: SecretStr) -> SecretStr:
    """It holds a password; what is wrong with the rest of it, libpq says when it connects."""
    if not url.get_secret_value().startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://, such as postgresql://user:password@host:5432/callstream")
    return url


def _models(value: object) -> object:
    """Names of models in a text, between commas."""
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


def _model_name(name: str) -> str:
    provider, _, model = name.partition(":")
    if provider not in PROVIDERS or not model:
        raise ValueError(f"{name!r} is not provider:model, where provider is one of {', '.join(PROVIDERS)}")
    return name


def _headers(value: object) -> object:
    """`name: value`, a line for each, as the official SDKs read it."""
    if not isinstance(value, str):
        return value
    fields = [line.partition(":") for line in value.splitlines() if line.strip()]
    if not all(colon and re.fullmatch(_FIELD_NAME, name.strip()) for name, colon, _ in fields):
        raise ValueError("must be name: value, each on a line of its own")
    return {name.strip(): text.strip() for name, _, text in fields}


Headers = Annotated[dict[str, SecretStr], NoDecode, BeforeValidator(_headers)]
ModelNames = Annotated[tuple[Annotated[str, AfterValidator(_model_name)], ...], NoDecode, BeforeValidator(_models)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_postgres_url)]
HttpUrl = Annotated[str, AfterValidator(lambda url: _url(url, "http", "https"))]


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
