"""The connections to providers: their reuse, proxies and certificates, and what is left after an answer."""

import asyncio
import gc
import json
import logging
import ssl
import traceback
import tracemalloc
import zlib
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from callstream_runtime.response_bounds import MAX_INTERIM
from dialog_engine.errors import (
    ConfigurationError,
    LLMError,
    LLMRequestError,
    LLMStreamBrokenError,
    LLMUnavailableError,
)
from dialog_engine.llm.provider import Timeouts
from dialog_engine.model import ChatEvent, ChatRequest, FinishReason, StreamEnd, TextDelta, UserMessage
from tests.marks import promise
from tests.support.certificates import make_certificates
from tests.support.hello import HELLO, HELLO_EVENTS, KEY, REQUEST, TURN
from tests.support.llm_clients import AnthropicModel, OpenAIModel
from tests.support.longest_turn import short_turns
from tests.support.scripted_provider import CutError, Exchange, Provider, Script, answer, refusal, serving
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(b"".join(HELLO)))) as provider:
        yield provider


@pytest.fixture
async def client(provider: Provider) -> AsyncGenerator[OpenAIModel]:
    async with aclosing(OpenAIModel(provider.url, KEY, "model", max_retries=0)) as client:
        yield client


async def ask(client: OpenAIModel | AnthropicModel) -> list[ChatEvent]:
    return [event async for event in await client.open(REQUEST)]


async def hangs_up(_: Exchange) -> None:
    raise CutError


# --- Connections that are used again ---------------------------------------------------------------------------------


@promise("a kept connection that the provider just closed is no failure")
async def test_a_kept_connection_that_the_server_just_closed_is_no_failure(
    provider: Provider, client: OpenAIModel
) -> None:
    provider.scripts = [answer(*HELLO), hangs_up, answer(*HELLO)]
    assert [await ask(client) for _ in range(2)] == [HELLO_EVENTS, HELLO_EVENTS]
    assert (len(provider.asked), provider.connections) == (3, 2)


async def test_the_end_of_a_response_is_awaited_so_that_its_connection_can_be_used_again(provider: Provider) -> None:
    shown = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(b"".join(HELLO))
        await shown.wait()
        await exchange.end()

    provider.scripts = [script, answer(*HELLO)]
    async with aclosing(OpenAIModel(provider.url, KEY, "model", timeouts=Timeouts(end=10))) as client:
        async for event in await client.open(REQUEST):
            if isinstance(event, StreamEnd):
                shown.set()
        assert await ask(client) == HELLO_EVENTS
    assert provider.connections == 1


async def test_a_request_without_retries_is_repeated_once_when_its_connection_is_closed(
    provider: Provider, client: OpenAIModel, caplog: pytest.LogCaptureFixture
) -> None:
    provider.scripts = [hangs_up]
    with pytest.raises(LLMUnavailableError, match="connection"):
        await ask(client)
    assert len(provider.asked) == 2
    assert caplog.messages == ["a request to model is repeated, because its connection was closed without an answer"]


async def test_a_kept_connection_that_broke_in_an_answer_is_a_failure(provider: Provider, client: OpenAIModel) -> None:
    async def begins(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 ")
        raise CutError

    provider.scripts = [answer(*HELLO), begins, answer(*HELLO)]
    assert await ask(client) == HELLO_EVENTS
    with pytest.raises(LLMUnavailableError, match="connection"):
        await ask(client)
    assert len(provider.asked) == 2


async def test_an_attempt_to_connect_has_its_limit_and_is_made_again() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append(await reader.read(1))
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    attempts: list[bytes] = []
    async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"  # its handshake is not answered
        async with aclosing(OpenAIModel(url, KEY, "model", max_retries=1, timeouts=Timeouts(connect=0.1))) as client:
            with pytest.raises(LLMUnavailableError, match="in time"):
                await asyncio.wait_for(ask(client), 10)
    assert len(attempts) == 2


# --- Ways to the provider --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["socks5://user:hunter2@proxy:1080", "http://user:hunter2@proxy:port"])
async def test_a_proxy_that_cannot_be_used_is_a_wrong_setting_and_its_password_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", address)
    with pytest.raises(ConfigurationError) as caught:
        OpenAIModel("http://model.invalid/v1", KEY, "model")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["hunter2\n", "a\x00b", "h\u00fcnter2"])
async def test_a_key_that_cannot_be_sent_is_a_wrong_setting_and_is_not_shown(key: str) -> None:
    for kind in (OpenAIModel, AnthropicModel):
        with pytest.raises(ConfigurationError, match="key") as caught:
            kind("http://model.invalid/v1", key, "model")
        assert key not in str(caught.value)


@pytest.mark.parametrize(("kind", "name"), [(OpenAIModel, "OPENAI_API_KEY"), (AnthropicModel, "ANTHROPIC_API_KEY")])
def test_neither_key_nor_url_is_a_wrong_setting(kind: type[OpenAIModel] | type[AnthropicModel], name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        kind(None, None, "model")


@pytest.mark.parametrize("model", [OpenAIModel, AnthropicModel])
async def test_a_query_in_the_base_url_is_kept_and_its_password_is_sent_as_a_header(
    provider: Provider, model: type[OpenAIModel] | type[AnthropicModel]
) -> None:
    url = provider.url.removesuffix("/v1").replace("://", "://us%40er:pass@") + "/deep/er%20path/?key=a%26b&v=1"
    async with aclosing(model(url, KEY, "model", max_retries=0)) as client:
        with suppress(LLMError):
            await ask(client)
    [asked] = provider.asked
    path = "/deep/er%20path/chat/completions" if model is OpenAIModel else "/deep/er%20path/v1/messages"
    assert asked.target == f"{path}?key=a%26b&v=1"
    assert asked.fields["authorization"] == f"Basic {b64encode(b'us@er:pass').decode()}"


@promise("header fields, organisation and project of the environment arrive as from the official SDKs, and are secrets")
@pytest.mark.parametrize("model", [OpenAIModel, AnthropicModel])
async def test_the_operators_header_fields_replace_those_of_the_sdk_and_an_empty_one_removes_it(
    provider: Provider, model: type[OpenAIModel] | type[AnthropicModel]
) -> None:
    headers = {"authorization": "", "api-key": "hunter2", "user-agent": "Mine"}
    async with aclosing(model(provider.url, KEY, "model", max_retries=0, headers=headers)) as client:
        with suppress(LLMError):
            await ask(client)
    fields = provider.asked[0].fields
    assert "authorization" not in fields
    assert (fields["api-key"], fields["user-agent"]) == ("hunter2", "Mine")


# The SDKs' transport passes the proxy's password in a way that aiohttp 4 will remove.
proxy_with_password = pytest.mark.filterwarnings("ignore:.*(BasicAuth|proxy_auth).*deprecated:DeprecationWarning")


@promise("proxies of the environment and the system's certificates are used")
@proxy_with_password
async def test_a_proxy_of_the_environment_is_asked_and_given_its_password(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", provider.url.removesuffix("/v1").replace("://", "://user:secret@"))
    async with aclosing(OpenAIModel("http://model.invalid/v1", KEY, "model")) as client:
        assert [await ask(client) for _ in range(2)] == [HELLO_EVENTS, HELLO_EVENTS]
    for asked in provider.asked:
        assert asked.target == "http://model.invalid/v1/chat/completions"
        assert asked.fields["proxy-authorization"] == f"Basic {b64encode(b'user:secret').decode()}"
        assert asked.fields["authorization"] == f"Bearer {KEY}"
    assert provider.connections == 1


@promise("proxies of the environment and the system's certificates are used")
@proxy_with_password
async def test_a_tunnel_through_a_proxy_hides_everything_from_it_and_the_systems_store_says_whom_to_trust(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_certificates(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.server, files.server_key)
    heads: list[str] = []

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        host, _, port = heads[-1].split(" ")[1].partition(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        await asyncio.gather(carry(reader, back), carry(there, writer))

    async with (
        await asyncio.start_server(provider.connected, "127.0.0.1", 0, ssl=tls) as server,
        await asyncio.start_server(connect, "127.0.0.1", 0) as proxy,
    ):
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        url = f"https://localhost:{port}/v1"
        async with aclosing(OpenAIModel(url, KEY, "model", max_retries=0)) as stranger:
            with pytest.raises(LLMUnavailableError):
                await ask(stranger)
        heads.clear()
        monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
        async with aclosing(OpenAIModel(url, KEY, "model")) as client:
            assert await ask(client) == HELLO_EVENTS
    assert [head.split("\r\n")[0] for head in heads] == [f"CONNECT localhost:{port} HTTP/1.1"]
    assert f"Proxy-Authorization: Basic {b64encode(b'user:secret').decode()}" in heads[0]
    assert KEY not in heads[0]
    assert "proxy-authorization" not in provider.asked[0].fields


async def carry(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while read := await source.read(65536):
            to.write(read)
            await to.drain()
    to.close()


async def test_a_compressed_answer_is_read_as_it_comes(provider: Provider, client: OpenAIModel) -> None:
    seen = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        packer = zlib.compressobj(wbits=31)
        await exchange.start(content_encoding="gzip")
        await exchange.send(packer.compress(HELLO[0]) + packer.flush(zlib.Z_SYNC_FLUSH))
        await seen.wait()
        await exchange.send(packer.compress(b"".join(HELLO[1:])) + packer.flush())
        await exchange.end()

    provider.scripts = [script]
    async with aclosing(await client.open(REQUEST)) as events:
        assert await anext(events) == TextDelta("Hel")
        seen.set()
        assert [event async for event in events] == [TextDelta("lo"), StreamEnd(FinishReason.STOP)]
    assert "gzip" in provider.asked[0].fields["accept-encoding"]


async def test_what_is_not_compressed_as_it_says_breaks_off(provider: Provider, client: OpenAIModel) -> None:
    provider.scripts = [answer(b"not gzip", content_encoding="gzip")]
    with pytest.raises(LLMStreamBrokenError):
        await ask(client)


@pytest.fixture(scope="module")
def packed_zeros() -> bytes:
    """A hundred megabytes."""
    packer, page = zlib.compressobj(1, wbits=31), bytes(1_000_000)
    return b"".join(packer.compress(page) for _ in range(100)) + packer.flush()


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_a_small_answer_that_unpacks_to_many_megabytes_is_unpacked_in_steps(
    provider: Provider, client: OpenAIModel, packed_zeros: bytes, status: int, kind: str
) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start(status, kind, content_encoding="gzip")
        with suppress(ConnectionError):
            await exchange.send(packed_zeros)
            await exchange.end()

    provider.scripts = [script]
    async with short_turns():
        with pytest.raises(LLMRequestError):
            await ask(client)


async def test_interim_responses_are_bounded(provider: Provider, client: OpenAIModel) -> None:
    def script(number: int) -> Script:
        async def interim(exchange: Exchange) -> None:
            with suppress(ConnectionError):
                await exchange.raw(b"HTTP/1.1 100 Continue\r\n\r\n" * number)
                await answer(*HELLO)(exchange)

        return interim

    provider.scripts = [script(MAX_INTERIM), script(MAX_INTERIM), script(100_000)]
    assert [await ask(client) for _ in range(2)] == [HELLO_EVENTS, HELLO_EVENTS]
    assert provider.connections == 1
    async with short_turns():
        with pytest.raises(LLMUnavailableError, match="connection"):
            await ask(client)


@pytest.mark.parametrize("head", [b"HTTP/1.1 two hundred\r\n\r\n", b"220 mail.example ESMTP\r\n"])
async def test_what_is_no_http_is_a_failed_connection(provider: Provider, client: OpenAIModel, head: bytes) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.raw(head)
        await exchange.until_closed()

    provider.scripts = [script]
    with pytest.raises(LLMUnavailableError, match="connection"):
        await ask(client)


# --- What is left behind ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 401])
async def test_whenever_it_is_cancelled_no_connection_is_left(
    provider: Provider, client: OpenAIModel, status: int
) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.start(status)
        await exchange.send(HELLO[0])
        await exchange.until_closed()

    provider.scripts = [endless]
    for steps in range(60):
        task = asyncio.create_task(ask(client))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await wait_until(lambda: not provider.open)
    assert provider.connections > 10


async def test_a_long_request_is_not_kept_in_memory_while_its_answer_is_read(
    provider: Provider, client: OpenAIModel
) -> None:
    closed = asyncio.Event()

    async def endless(exchange: Exchange) -> None:
        provider.asked.clear()
        provider.requests.clear()
        await exchange.start()
        await exchange.send(HELLO[0])
        await exchange.until_closed()
        closed.set()

    assert await ask(client) == HELLO_EVENTS
    provider.scripts = [endless]
    size = 900_000
    gc.collect()
    tracemalloc.start()
    try:
        async with aclosing(await client.open(ChatRequest((UserMessage("x" * size),), TURN))) as events:
            assert await anext(events) == TextDelta("Hel")
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < size / 2
    finally:
        tracemalloc.stop()
    await asyncio.wait_for(closed.wait(), 5)


@promise("keys go to the provider's own origin only, and into no log and no error")
@pytest.mark.parametrize("base", ["absent", "stranger", "mumbler"])
async def test_no_secret_is_logged_or_shown(provider: Provider, caplog: pytest.LogCaptureFixture, base: str) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 OK\r\nset-cookie: a b=c; path\r\nno field\r\n\r\n")

    provider.scripts = [script if base == "mumbler" else refusal(401, {"error": {"message": f"no {KEY}"}})]
    address = "127.0.0.1:1" if base == "absent" else provider.url.removeprefix("http://")
    url = f"http://user:{KEY}@{address}?key={KEY}"
    with caplog.at_level(logging.DEBUG):
        async with aclosing(OpenAIModel(url, KEY, "model", max_retries=0)) as client:
            with pytest.raises(LLMError) as caught:
                await ask(client)
    assert KEY not in "".join(traceback.format_exception(caught.value, chain=True))
    assert KEY not in caplog.text
    assert json.dumps(KEY) not in caplog.text
