"""The HTTP client of one server. Everything that is sent to a remote server goes through it, with its options."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
from yarl import URL

from callstream_runtime.response_bounds import ACCEPT, bound_interim_responses, unpacked
from plugins_mcp.mcp.calls import Ambiguous, NotSent, SendState
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.transport_options import Remote

CONNECT_SECONDS = 30.0
KEEP_ALIVE_SECONDS = 2.0
"""Many servers close idle connections after five seconds. A request into a connection that is being closed would have
an unknown outcome, so idle connections are closed here before that."""
MAX_REDIRECTS = 20
MAX_HEADER_BYTES = 64 * 1024
"""Of one header field of a response."""


@asynccontextmanager
async def http_client(target: Remote) -> AsyncGenerator["HttpClient"]:
    """A client for the server of `target`, which is closed with the context.

    The certificates, SSL_CERT_FILE, SSL_CERT_DIR and the proxies of the environment are those of httpx2.

    Raises:
        TransportError: the environment names a proxy that cannot be used.
        OSError: the file of authorities cannot be used.
    """
    bound_interim_responses()
    url = httpx2.URL(target.url)
    proxies = {scheme: proxy_for(scheme, url.host) for scheme in ("http", "https")}
    tracing = aiohttp.TraceConfig()
    tracing.on_request_headers_sent.append(_mark_sent)
    certificates = await asyncio.to_thread(_certificates, target.ca_file)  # it reads them: 25 ms
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=certificates),
        headers={**ACCEPT, **target.headers, **_authorization(url)},
        auto_decompress=False,  # `unpacked` does it in steps
        trace_configs=[tracing],
        max_field_size=MAX_HEADER_BYTES,
    ) as http:
        yield HttpClient(http, proxies)


class HttpClient:
    """Sends requests. Each failure is a TransportError of httpx2, as the SDK's clients expect."""

    def __init__(self, http: aiohttp.ClientSession, proxies: Mapping[str, str | None]) -> None:
        self._http = http
        self._proxies = proxies

    async def post(
        self,
        url: httpx2.URL,
        body: bytes,
        headers: Mapping[str, str],
        send_state: SendState,
        *,
        read_seconds: float | None = None,
    ) -> "HttpResponse":
        """Send a message. A body that is not an event stream has been read to its end.

        `read_seconds` bounds each wait for a part of the response. `send_state` is told whether a byte has left, and
        after a failure what that means for the call.

        Raises:
            TransportError: there is no response, it breaks off, or it is larger than MAX_ANSWER_BYTES.
        """
        try:
            response = await self.send("POST", url, headers, body, send_state, read_seconds=read_seconds)
            kind = response.headers.get("Content-Type", "").lower()
            if response.status >= 400 or kind.startswith("application/json"):
                await response.read()
        except httpx2.TransportError as error:
            send_state.http_result = (Ambiguous if send_state.sent else NotSent)(str(error))
            raise
        return response

    async def send(
        self,
        method: str,
        url: httpx2.URL,
        headers: Mapping[str, str],
        body: bytes = b"",
        send_state: SendState | None = None,
        *,
        read_seconds: float | None = None,
    ) -> "HttpResponse":
        """Send a request. Redirects that keep the method are followed within the server.

        The caller closes the response.

        Raises:
            TransportError: there is no response.
        """
        state, redirects = send_state or SendState(), 0
        while True:
            if state.rounds <= 1:
                state.sent = False  # after a redirect: the first address did not take the call
            try:
                response = await self._http.request(
                    method,
                    URL(str(url.copy_with(userinfo=b"") if url.userinfo else url), encoded=True),
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    proxy=self._proxies[url.scheme],
                    trace_request_ctx=state,
                    # Each call has its own time limit, and a quiet event stream is not broken.
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=read_seconds),
                )
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise _translated(error) from error
            target = redirect_within_server(url, response.status, response.headers.get("Location"))
            if target is None or redirects == MAX_REDIRECTS:
                return HttpResponse(response)
            response.release()
            url, redirects = target, redirects + 1


class HttpResponse:
    """A response whose head has arrived. `body` is empty until it was read to its end, which `is_read` says."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.body = b""
        self.is_read = False

    async def read(self) -> None:
        """Read `body` to its end, and close. Raises TransportError when it breaks off or is too large."""
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in self.parts():
                size += len(chunk)
                if size > MAX_ANSWER_BYTES:
                    raise httpx2.TransportError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
                chunks.append(chunk)
        finally:
            self.close()
        self.body, self.is_read = b"".join(chunks), True

    async def parts(self) -> AsyncIterator[bytes]:
        """The parts of the body, unpacked. Raises TransportError when it breaks off or cannot be unpacked."""
        encoding = self.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip"):
            raise httpx2.TransportError("the response is compressed as was not asked for")
        received = self._response.content.iter_any()
        try:
            async for part in unpacked(received) if encoding == "gzip" else received:
                yield part
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _translated(error) from error

    def close(self) -> None:
        """End the response. A connection whose response was not read to its end is closed."""
        self._response.release()


def redirect_within_server(url: httpx2.URL, status: int, location: str | None) -> httpx2.URL | None:
    """Where the response to a request redirects it, if it may be followed.

    A redirect that is followed keeps the method and leads to the same server or to its HTTPS address: the configured
    header fields and the arguments are for no other.
    """
    if status not in (307, 308) or location is None:
        return None
    try:
        target = url.join(location)
    except httpx2.InvalidURL:
        return None
    same_server = (url.scheme, url.host, url.port) == (target.scheme, target.host, target.port)
    # The default port of a scheme is None.
    becomes_https = url.host == target.host and (url.scheme, url.port) == ("http", None) and target.port is None
    brings_user = bool(target.userinfo) and target.userinfo != url.userinfo
    return target if (same_server or (becomes_https and target.scheme == "https")) and not brings_user else None


def _certificates(ca_file: str | None) -> ssl.SSLContext:
    context = httpx2.create_ssl_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:
            raise OSError(f"caFile cannot be used: {error.strerror or error}") from error
    return context


async def _mark_sent(http: aiohttp.ClientSession, context: SimpleNamespace, _: object) -> None:
    """Record that the first byte is about to leave."""
    context.trace_request_ctx.sent = True


def _translated(error: Exception) -> httpx2.TransportError:
    if isinstance(error, TimeoutError):
        return httpx2.TransportError("no answer in time")
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        return httpx2.TransportError(f"the connection failed: {error.os_error.strerror or error.os_error}")
    return httpx2.TransportError(str(error) or "the connection failed")


def _authorization(url: httpx2.URL) -> dict[str, str]:
    """The field for the user and the password in an address."""
    return {"Authorization": aiohttp.encode_basic_auth(url.username, url.password)} if url.userinfo else {}


def proxy_for(scheme: str, host: str) -> str | None:
    """The proxy of the environment for requests to a host. Raises TransportError for one that cannot be used."""
    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or proxy_bypass(host):
        return None
    address = proxy if "://" in proxy else f"http://{proxy}"
    if not address.startswith(("http://", "https://")):
        raise httpx2.TransportError("the proxy that the environment names is none of HTTP: others are not supported")
    return address
