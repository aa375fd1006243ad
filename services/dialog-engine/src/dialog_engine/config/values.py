"""Kinds of values of settings. Each raises ValueError with a text that says what is wrong, and holds no secret."""

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, SecretStr


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


DatabaseUrl = Annotated[SecretStr, AfterValidator(_postgres_url)]
ProxyAddresses = Annotated[str, AfterValidator(_proxies)]
HttpUrl = Annotated[str, AfterValidator(lambda url: _url(url, "http", "https"))]
