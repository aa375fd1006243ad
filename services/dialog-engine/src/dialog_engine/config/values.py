"""Kinds of values of settings. Each raises ValueError with a text that says what is wrong, and holds no secret."""

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr
from pydantic_settings import NoDecode


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
    """Check the scheme only: libpq checks the rest when it connects."""
    if not url.get_secret_value().startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://, such as postgresql://user:password@host:5432/callstream")
    return url


def _proxies(text: str) -> str:
    if text not in ("", "*"):
        for each in text.split(","):
            ipaddress.ip_network(each.strip())  # its ValueError says what is wrong
    return text


def _origin(text: str) -> str:
    """An origin in the form in which browsers send it, which is compared letter by letter."""
    if "*" in text:
        raise ValueError("lists origins one by one, such as https://app.example: * is not possible")
    url = urlsplit(_url(text, "http", "https"))
    port = "" if url.port in (None, {"http": 80, "https": 443}[url.scheme]) else f":{url.port}"
    name = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    if text != (origin := f"{url.scheme}://{name}{port}"):
        raise ValueError(f"must be origins as browsers send them, without a path or a slash at the end: use {origin}")
    return origin


def _listed(value: object) -> object:
    return tuple(each.strip() for each in value.split(",") if each.strip()) if isinstance(value, str) else value


Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], NoDecode, BeforeValidator(_listed)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_postgres_url)]
ProxyAddresses = Annotated[str, AfterValidator(_proxies)]
HttpUrl = Annotated[str, AfterValidator(lambda url: _url(url, "http", "https"))]
