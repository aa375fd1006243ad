"""The HTTP connections of one provider: the SDKs' own client on aiohttp, with the bounds that it lacks, and its errors.

Servers send each token as an HTTP chunk of its own. The C parser of aiohttp returns everything that has arrived in one
read, where the SDKs' default transport makes a read of each chunk.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from ssl import SSLCertVerificationError, SSLContext
from typing import NamedTuple, Protocol
from urllib.request import getproxies

import httpx2
from aiohttp import ClientConnectorDNSError, ClientConnectorError, ClientOSError, ServerDisconnectedError

from callstream_runtime.response_bounds import ACCEPT, bound_interim_responses, unpack_in_steps
from dialog_engine.errors import ConfigurationError, LLMError, LLMUnavailableError
from dialog_engine.llm.bounded_reading import bound_error

MAX_CONNECTIONS = 20_000
"""Each streaming turn has a connection; the number of turns is not limited here."""
KEEP_ALIVE_SECONDS = 30.0
"""How long an idle connection is kept, so that the next turn seldom waits for a TLS handshake."""


def open_connections(kind: type[httpx2.AsyncClient], connect_seconds: float) -> httpx2.AsyncClient:
    """A connection pool for one SDK client, which closes it.

    `kind` is the SDK's HTTP client on aiohttp. `connect_seconds` bounds each attempt to connect.

    Certificates, SSL_CERT_FILE, SSL_CERT_DIR and the proxies of the environment are those of httpx2. Redirects are not
    followed: they would turn a POST into a GET, or take the conversation and its keys to another server.

    Raises:
        ConfigurationError: the environment names a proxy that cannot be used.
    """
    bound_interim_responses()
    # Their messages contain URLs and, at DEBUG, header fields: both may hold secrets.
    for name in ("httpx2", "openai", "anthropic", "botocore", "urllib3", "google"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        if any(address.startswith("socks") for address in getproxies().values()):
            raise ValueError("not a proxy of HTTP")
        return kind(
            verify=_trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
            # How long an answer may take is decided by its reader.
            timeout=httpx2.Timeout(None, connect=connect_seconds),
            limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEP_ALIVE_SECONDS),
            headers=ACCEPT,
            event_hooks={"response": [unpack_in_steps, bound_error]},
            follow_redirects=False,
        )
    except (ValueError, httpx2.InvalidURL):
        raise ConfigurationError(
            "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY must be http:// or https:// URLs: other proxies are not supported"
        ) from None


@cache
def _trusted(_file: str | None, _folder: str | None) -> SSLContext:
    """The certificates that httpx2 trusts with these variables, for all clients: to load them takes 25 ms."""
    return httpx2.create_ssl_context()


class BaseUrl(NamedTuple):
    """A base URL in the parts that the SDKs take."""

    url: str
    query: Mapping[str, str]
    """Sent with every request: the SDKs would append the path of the API to it."""
    headers: Mapping[str, str]
    """The Authorization field with the URL's user and password, if it has them."""


def split_base_url(base_url: str) -> BaseUrl:
    """Separate the query and the credentials from a base URL."""
    url = httpx2.URL(base_url)
    plain = url.copy_with(username=None, password=None, query=None, fragment=None)
    headers: dict[str, str] = {}
    if url.userinfo:
        authorized = next(httpx2.BasicAuth(url.username, url.password).auth_flow(httpx2.Request("POST", plain)))
        headers["Authorization"] = authorized.headers["Authorization"]
    return BaseUrl(str(plain), dict(url.params), headers)


def check_headers(headers: Mapping[str, str]) -> None:
    """Check the key and the operator's own header fields.

    Raises:
        ConfigurationError: one holds a character that cannot be sent.
    """
    if not all(value.isascii() and value.isprintable() for value in headers.values()):
        raise ConfigurationError(
            "the key for the model's provider, or a header field for it, holds a line break or another character that"
            " cannot be sent"
        )


# --- What connections fail with ---


class StatusError(Protocol):
    """What the SDKs' errors for a status have in common."""

    status_code: int
    body: object
    response: httpx2.Response


def refused_options(options: Iterable[str], error: StatusError) -> set[str]:
    """The options that the provider's message names."""
    if error.status_code not in (400, 422):
        return set()
    message = str(error.body).lower()
    return {name for name in options if name in message or name.replace("_", " ") in message}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from: the SDK's, httpx2's, aiohttp's."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def closed_early(error: Exception) -> bool:
    """Whether the connection was closed before a byte of the answer, which aiohttp would put into the error."""
    return any(
        (isinstance(cause, ServerDisconnectedError) and isinstance(cause.message, str))
        or (isinstance(cause, ClientOSError) and not isinstance(cause, ClientConnectorError))
        for cause in _causes(error)
    )


def connection_error(error: Exception) -> LLMError:
    """Why a connection failed. The SDKs' transport reports every failure to connect as a timeout: only aiohttp's own
    error says which it is."""
    for cause in _causes(error):
        match cause:
            case TimeoutError():
                return LLMUnavailableError("the model's provider did not answer in time")
            case SSLCertVerificationError():
                return LLMUnavailableError(
                    "the connection to the model's provider failed: its certificate is not trusted"
                )
            case ClientConnectorDNSError():
                return LLMUnavailableError(
                    "the connection to the model's provider failed: its name cannot be looked up"
                )
            case ClientConnectorError():
                return LLMUnavailableError("the connection to the model's provider failed: it cannot be reached")
            case _:
                pass
    return LLMUnavailableError("the connection to the model's provider broke")
