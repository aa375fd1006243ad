"""Connections to providers: a pool for each client, on aiohttp.

Servers send a token as an HTTP chunk of its own. Its parser, in C, hands over at once whatever has come.
"""

import ssl
import sys
from pathlib import Path
from types import SimpleNamespace

import truststore
from aiohttp import ClientSession, ClientTimeout, TCPConnector, TraceConfig

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
