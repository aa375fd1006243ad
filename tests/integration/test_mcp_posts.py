"""Calls of stateless HTTP servers by plain POSTs, compared with the same calls through the SDK's transport.

The SDK is the oracle: the outcome of a call, what it reports, and what the server receives must be the same.
"""

import gzip
import json
import ssl
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import MCPError
from mcp.shared._httpx_utils import next_request_within_origin
from mcp.types import DiscoverResult, Implementation, ServerCapabilities

from plugins_contract.outcomes import CallProgress
from plugins_mcp.mcp import Ambiguous, Answered, CallResult, NotSent
from plugins_mcp.mcp.calls import SendState
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.dispatcher import TransportListener, direct_session
from plugins_mcp.mcp.http_client import http_client, proxy_for, redirect_within_server
from plugins_mcp.mcp.http_posts import PostDispatcher
from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.transport_options import Http
from tests.integration.servers import connected, owned, remote
from tests.integration.servers.behaviours import answer
from tests.integration.servers.scripted import LEGACY, MODERN, Behaviour, Request, ScriptedServer, scripted
from tests.support.certificates import make_certificates

ARGUMENTS: dict[str, Any] = {"text": "Grüße 🦊 \u2028", "region": "eu", "deep": [{"a": None, "b": 10**30, "c": 1.5}]}
SCHEMA = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
META = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-00"}
CLIENT = Implementation(name="test", version="1")
DISCOVERED = DiscoverResult(supported_versions=["2026-07-28"], capabilities=ServerCapabilities())
CHOSEN_BY_THE_LIBRARY = {"accept-encoding", "connection", "content-length", "user-agent"}


class Listener(TransportListener):
    """Listens to nothing."""

    def lost(self) -> None: ...

    async def result(self, result: dict[str, Any]) -> None: ...


def final(request: Request, **fields: Any) -> bytes:
    content = [{"type": "text", "text": "done"}]
    return request.envelope(result={"content": content, "resultType": "complete", **fields})


async def answer_in_pieces(request: Request) -> None:
    """An event stream as the format allows it: comments, ids, other types, CRLF, data in several lines, any cut."""
    await request.event_stream()
    text = final(request).decode().replace(", ", ",\r\ndata:")
    stream = f": hello\r\n\r\nid: 7\r\nretry: 10\r\ndata:\r\n\r\nevent: ping\r\ndata: {{}}\r\n\r\ndata: {text}\r\n\r\n"
    for byte in stream.encode():
        await request.raw(b"1\r\n" + bytes([byte]) + b"\r\n")
    await request.raw(b"0\r\n\r\n")


async def answer_with_long_header_fields(request: Request) -> None:
    await request.respond(200, final(request), x_policy="p" * 40_000)


async def answer_compressed(request: Request) -> None:
    await request.respond(200, gzip.compress(final(request)), content_encoding="gzip")


async def answer_with_broken_compression(request: Request) -> None:
    await request.respond(200, b"not gzip at all", content_encoding="gzip")


async def redirect(request: Request) -> None:
    if request.headers[":path"].startswith("/mcp"):
        await request.respond(308, kind="", location="/moved?x=1")
    else:
        await request.text(f"moved to {request.headers[':path']}")


async def redirect_for_ever(request: Request) -> None:
    await request.respond(307, kind="", location="/mcp?again")


# What messages mean is compared by `test_mcp_lines.py`, for both; what failures say, by `test_mcp_http.py`.
BEHAVIOURS: dict[str, Behaviour] = {
    behave.__name__: behave
    for behave in (
        answer,
        answer_in_pieces,
        answer_with_long_header_fields,
        answer_compressed,
        answer_with_broken_compression,
        redirect,
        redirect_for_ever,
    )
}


@dataclass(frozen=True)
class Seen:
    """What can be seen of one call, by its caller and by the server."""

    result: CallResult | type[CallResult]
    sent: bool
    reports: list[CallProgress]
    requests: list[tuple[dict[str, str], dict[str, Any]]]


async def call(peer: ScriptedServer, spec: ServerSpec) -> Seen:
    reports: list[CallProgress] = []
    send_state = SendState(may_ask=True)  # the SDK declares for each call that people can be asked
    async with connected(spec) as server:
        peer.requests.clear()
        result = await server.call(
            "tool", ARGUMENTS, timeout_s=10, on_progress=reports.append, meta=META, send_state=send_state
        )
        requests = [_comparable(request) for request in peer.calls("tool")]
    # Libraries describe a broken connection in their own words.
    kept = type(result) if isinstance(result, Ambiguous | NotSent) else result
    return Seen(kept, send_state.sent, reports, requests)


def _comparable(request: Request) -> tuple[dict[str, str], dict[str, Any]]:
    message = json.loads(json.dumps(request.message))
    message["params"]["_meta"]["progressToken"] = message["id"] = "any"
    return {name: value for name, value in request.headers.items() if name not in CHOSEN_BY_THE_LIBRARY}, message


@pytest.mark.parametrize("name", BEHAVIOURS)
async def test_a_post_and_the_transport_of_the_sdk_do_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(tool=BEHAVIOURS[name]) as peer:
        peer.tools = [{"name": "tool", "inputSchema": SCHEMA}]
        spec = remote(peer.url, headers={"Authorization": "Bearer key", "User-Agent": "ours"})
        by_post = await call(peer, spec)
        monkeypatch.setattr("plugins_mcp.mcp.session.direct_session", _none)
        by_sdk = await call(peer, spec)
    assert by_post == by_sdk
    assert by_post.requests[0][0]["mcp-param-region"] == "eu"


async def test_the_certificates_are_those_of_the_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make_certificates(tmp_path)
    peer = ScriptedServer(behaviours={"tool": answer}, tls=ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
    assert peer.tls is not None
    peer.tls.load_cert_chain(files.server, files.server_key)
    await peer.start()
    try:
        monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
        async with connected(remote(peer.url)) as server:
            assert isinstance(await server.call("tool", {}, timeout_s=10), Answered)
            assert len(peer.calls("tool")) == 1
        monkeypatch.delenv("SSL_CERT_FILE")
        async with (
            http_client(Http(peer.url)) as http,
            direct_session(PostDispatcher(http, peer.url, Listener()), DISCOVERED, CLIENT) as session,
        ):
            with pytest.raises(MCPError, match="certificate"):
                await session.call_tool("tool", {})
    finally:
        await peer.stop()
    assert len(peer.calls("tool")) == 1


def _none(*_: object) -> AbstractAsyncContextManager[None]:
    return nullcontext()


async def test_after_changed_header_fields_of_a_tool_it_is_listed_and_called_again() -> None:
    async def insist(request: Request) -> None:
        if "mcp-param-region" in request.headers:
            await request.text("fine")
        else:
            await request.error(-32020, "Header mismatch", 400)

    async with scripted(tool=insist) as peer, connected(remote(peer.url)) as server:
        peer.tools = [{"name": "tool", "inputSchema": SCHEMA}]
        assert isinstance(await server.call("tool", ARGUMENTS, timeout_s=10), Answered)


LOCATIONS = [
    "",
    "/x?y=1#z",
    "x",
    "//a.example/x",
    "//b.example/x",
    "http://a.example/x",
    "http://A.EXAMPLE:80/x",
    "http://a.example:81/x",
    "https://a.example/x",
    "https://a.example:444/x",
    "https://b.example/x",
    "http://u:p@a.example:81/x",
    "http://v:p@a.example:81/x",
    "http://v:p@a.example/x",
    "http://a.example@b.example/x",
    "file:///etc/passwd",
    "http://[",
]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("url", ["http://a.example/mcp?k=1", "http://u:p@a.example:81/mcp", "https://a.example/mcp"])
async def test_the_redirects_that_are_followed_are_those_of_the_sdk(url: str, status: int) -> None:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: response)) as client:
        for location in LOCATIONS:
            response = httpx2.Response(status, headers={"Location": location})
            followed = None
            with suppress(httpx2.HTTPError):
                followed = next_request_within_origin(await client.post(url))
            ours = redirect_within_server(httpx2.URL(url), status, location)
            assert str(ours) == str(followed.url if followed else None), location


@pytest.mark.parametrize(
    "fields", [{"id": "another"}, {"id": 999, "result": None, "error": {"code": 1, "message": ""}}]
)
async def test_an_answer_to_another_request_says_nothing_about_the_call(fields: dict[str, Any]) -> None:
    """The SDK ignores such an answer, and the call runs into its time limit."""

    async def confuse(request: Request) -> None:
        message = json.loads(final(request)) | fields
        kept = {key: value for key, value in message.items() if value is not None}
        await request.respond(200, json.dumps(kept).encode())

    async with scripted(tool=confuse) as peer, connected(remote(peer.url)) as server:
        assert isinstance(await server.call("tool", {}, timeout_s=5), Ambiguous)


async def test_an_answer_of_any_size_is_bounded_while_it_is_read() -> None:
    async def endless(request: Request) -> None:
        await request.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        while not request.gone.is_set():
            await request.raw(b"100000\r\n" + b" " * 0x100000 + b"\r\n")

    async with scripted(tool=endless) as peer, connected(remote(peer.url)) as server:
        result = await server.call("tool", {}, timeout_s=20)
        assert result == Ambiguous(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")


async def test_connections_are_used_again() -> None:
    """A second one may be left from the negotiation."""
    connections: set[object] = set()

    async def count(request: Request) -> None:
        connections.add(request.writer)
        await request.text("fine")

    async with scripted(tool=count) as peer, connected(remote(peer.url)) as server:
        for _ in range(5):
            assert isinstance(await server.call("tool", {}, timeout_s=5), Answered)
    assert len(connections) <= 2


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_everything_goes_through_the_proxy_of_the_environment(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(era, tool=answer) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{proxy.port}")
        async with connected(remote("http://tools.example:8000/mcp")) as server:
            assert isinstance(await server.call("tool", {}, timeout_s=10), Answered)
        assert {request.headers[":path"] for request in proxy.requests} == {"http://tools.example:8000/mcp"}


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"HTTP_PROXY": "http://proxy.example:3128"}, "http://proxy.example:3128"),
        ({"HTTPS_PROXY": "http://proxy.example:3128"}, None),
        ({"ALL_PROXY": "proxy.example:3128"}, "http://proxy.example:3128"),
        ({"ALL_PROXY": "http://proxy.example:3128", "NO_PROXY": ".example"}, None),
    ],
)
def test_the_proxy_is_that_of_the_environment(
    environment: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for("http", "tools.example") == proxy


@pytest.mark.usefixtures("no_proxies")
async def test_a_proxy_that_cannot_be_used_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    async with owned(remote("http://tools.example:8000/mcp")) as server:
        await server.attempted.wait()
        assert server.last_error == "the proxy that the environment names is none of HTTP: others are not supported"
