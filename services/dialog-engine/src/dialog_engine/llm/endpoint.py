"""The way to a provider: where it is asked, and as whom, and a pool of connections for each client, on aiohttp.

Servers send a token as an HTTP chunk of its own. The parser of aiohttp, in C, hands over at once whatever has come.
"""

import ssl
import sys
from base64 import b64encode
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import truststore
from aiohttp import ClientSession, ClientTimeout, TCPConnector, TraceConfig
from multidict import CIMultiDict
from yarl import URL

from dialog_engine.errors import ConfigurationError

_NONE: Mapping[str, str] = {}
_USER_AGENT = f"Callstream/{version('dialog-engine')}"


class Endpoint:
    """A resource of a provider's API. All of it is worked out once per client.

    `base_url` may have a path, with or without a slash at its end, and a query, which is kept. A user and a password
    in it are sent in the Authorization header, in the place of what `private` says there. `public` are header fields
    that anybody may see; those of `private` are for the origin of `base_url` only, wherever it redirects to. So are
    those of `own`, the operator's: they take the place of ours of the same name, and an empty one leaves it out.

    Raises:
        ConfigurationError: `base_url` is not a URL, or a key holds what no header field can.
    """

    def __init__(
        self,
        base_url: str,
        path: str,
        *,
        public: Mapping[str, str],
        private: Mapping[str, str],
        own: Mapping[str, str] = _NONE,
    ) -> None:
        try:
            base = URL(base_url)
            whole = base.raw_path.removesuffix("/") + path
            self.url = base.with_user(None).with_path(whole, encoded=True, keep_query=True)
        except ValueError:
            raise ConfigurationError("the base URL of the model's provider is not a URL") from None
        self._public = CIMultiDict(
            {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": _USER_AGENT, **public}
        )
        self._headers = self._public.copy()
        self._headers.update(private)
        if base.user or base.password:
            pair = f"{base.user or ''}:{base.password or ''}"
            self._headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        for name, value in own.items():
            self._headers.popall(name, None)
            if value:
                self._headers[name] = value
        if any(not value.isprintable() for value in self._headers.values()):
            raise ConfigurationError(
                "the key for the model's provider, or a header field for it, holds characters that cannot be sent"
            )

    def headers(self, url: URL) -> CIMultiDict[str]:
        """The header fields of a request to `url`: this endpoint's own, or where it redirects to."""
        return self._headers if url is self.url or self._is_of_the_same(url) else self._public

    def _is_of_the_same(self, url: URL) -> bool:
        """The same origin, or the same host that insists on TLS."""
        own, other = _origin(self.url), _origin(url)
        upgrade = own == ("http", other[1], 80) and other == ("https", own[1], 443)
        return own == other or upgrade


def _origin(url: URL) -> tuple[str, str, int | None]:
    return url.scheme, (url.host or "").lower(), url.port


def redirected(url: URL, location: str | None) -> URL | None:
    """Where a redirect from `url` leads to; None where that is nothing that can be asked."""
    try:
        target = url.join(URL(location or "")).with_user(None)
    except ValueError:
        return None
    return target if location and target.scheme in ("http", "https") and target.host else None


MAX_CONNECTIONS = 20_000
"""A turn that streams has a connection: how many there may be is not decided here."""
KEEP_ALIVE_SECONDS = 30.0
"""So long an idle connection is kept: the next turn seldom waits for a TLS handshake."""

_BUNDLES = (
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
)
"""Where Linux distributions keep their certificates, if not where this Python's OpenSSL was built to look."""


class Attempt:
    """Notes about one request, for its sender."""

    __slots__ = ("reused",)

    def __init__(self) -> None:
        self.reused = False
        """It goes out on a connection that another one used before."""


def open_connections(connect_seconds: float) -> ClientSession:
    """A pool of connections, for its owner to close; `trace_request_ctx` of a request is an Attempt.

    The limit is for each attempt to connect. How long answers are waited for is for who reads them.
    """
    watching = TraceConfig()
    watching.on_connection_reuseconn.append(_note_reuse)
    return ClientSession(
        connector=TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=_certificates()),
        timeout=ClientTimeout(total=None, sock_connect=connect_seconds),
        trace_configs=[watching],
    )


async def _note_reuse(_: ClientSession, context: SimpleNamespace, __: object) -> None:
    attempt: Attempt = context.trace_request_ctx
    attempt.reused = True


def _certificates() -> ssl.SSLContext:
    """Certificates are checked against the operating system's store, or what SSL_CERT_FILE and SSL_CERT_DIR name."""
    paths = ssl.get_default_verify_paths()
    if sys.platform in ("win32", "darwin") and not (paths.cafile or paths.capath):
        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_default_verify_paths()
    found = paths.cafile or (paths.capath and any(Path(paths.capath).iterdir()))
    if not found and (bundle := next((path for path in _BUNDLES if Path(path).is_file()), None)):
        context.load_verify_locations(bundle)
    context.set_alpn_protocols(["http/1.1"])
    return context
