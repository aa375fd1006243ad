"""Attacks on the HTTP port by clients that nothing is known about: what they can cost, and that others are answered."""

import asyncio
import resource
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from callstream_runtime.connection_limits import ConnectionLimits
from callstream_runtime.http_connection import READ_BYTES
from deploy.local.ports import free_port
from dialog_engine.http.app import server_of
from plugins_mcp.observe.health import Readiness, health_server
from tests.integration.engines import Start
from tests.marks import promise
from tests.support.waiting import wait_until

LIMITS = ConnectionLimits(
    connections=20, connections_per_address=5, head_bytes=32_768, head_seconds=0.3, body_seconds=0.3
)
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


class Served:
    """A server with short limits, and what its application has read of bodies."""

    def __init__(self) -> None:
        self.port = 0
        self.connections: set[Any] = set()
        self.bodies: list[bytes] = []
        self.names: set[str] = set()
        self.release = asyncio.Event()

    async def app(self, request: Request) -> PlainTextResponse:
        self.bodies.append(await request.body())
        self.names.update(request.headers)
        return PlainTextResponse("served")

    async def stream(self, _: Request) -> StreamingResponse:
        async def parts() -> AsyncGenerator[bytes]:
            yield b"first"
            await self.release.wait()
            yield b"last"

        return StreamingResponse(parts())

    async def connect(self, host: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(host, 0))

    async def ask(self, request: bytes = LAST, host: str = "127.0.0.1") -> bytes:
        """What a client gets that sends this and then nothing, to the end of the connection."""
        reader, writer = await self.connect(host)
        try:
            writer.write(request)
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def serving(limits: ConnectionLimits = LIMITS, cors_origins: Sequence[str] = ()) -> AsyncGenerator[Served]:
    served = Served()
    app = Starlette(
        routes=[Route("/", served.app, methods=["GET", "POST"]), Route("/stream", served.stream, methods=["GET"])]
    )
    server = server_of(app, asyncio.Event(), grace_seconds=0, limits=limits, cors_origins=cors_origins)
    quick: Any = server.config
    quick.port, quick.timeout_keep_alive = 0, 0.2
    task = asyncio.create_task(server.serve())
    try:
        await wait_until(lambda: server.started)
        served.connections = server.server_state.connections
        served.port = server.servers[0].sockets[0].getsockname()[1]
        yield served
    finally:
        served.release.set()
        server.should_exit = True
        await task


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


LARGE_HEADS = {
    "a long header": b"GET / HTTP/1.1\r\nx: " + b"a" * 33_000 + b"\r\n\r\n",
    "a long address": b"GET /?" + b"a" * 33_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "a path of wide characters": b"GET /%F0%9F%98%80" + b"a" * 7_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "101 headers": b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 101 + b"\r\n",
    "95 longer ones": b"GET / HTTP/1.1\r\n" + b"x: %s\r\n" % (b"y" * 200) * 95 + b"\r\n",
    "many": b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 40_000 + b"\r\n",
    "no end": b"GET / HTTP/1.1\r\n" + b"a" * 200_000,
    "a long one, and one without a colon": b"GET / HTTP/1.1\r\nx: " + b"a" * 33_000 + b"\r\ny: y\r\nno colon\r\n\r\n",
    "trailers without end": b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    + b"x: y\r\n" * 40_000,
}


@promise("heads, bodies and connections are limited before authentication")
async def test_a_large_head_is_answered_once_with_431() -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with serving() as served:
        for name, head in LARGE_HEADS.items():
            answer = await served.ask(head)
            assert status(answer) == 431, name
            assert b"application/problem+json" in answer
            assert b"HEAD_TOO_LARGE" in answer
            assert answer.count(b"content-length") == 1
        for lines in (b"x: " + b"a" * 30_000 + b"\r\n", b"x: y\r\n" * 98):
            assert status(await served.ask(LAST.replace(b"host", lines + b"host"))) == 200
    assert not errors


async def test_heads_without_end_cost_neither_memory_nor_time() -> None:
    """Seventy megabytes of headers."""
    async with serving() as served:
        _, writer = await served.connect()
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        writer.write(b"GET / HTTP/1.1\r\n")
        try:
            for _ in range(70):
                writer.write(b"x: " + b"a" * 1_000_000)
                await writer.drain()
        except ConnectionError:
            pass
        assert time.process_time() - began < 2
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
        writer.close()
        assert status(await served.ask()) == 200


async def test_what_cannot_be_parsed_is_refused_once_and_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as served:
        for _ in range(20):
            answer = await served.ask(b"GET / HTTP/1.1\r\nno colon\r\n\r\n")
            assert (status(answer), answer.count(b"content-length")) == (400, 1)
    assert caplog.messages.count("Invalid HTTP request received.") <= 2


async def test_trailers_are_not_taken_for_headers() -> None:
    """A proxy replaces the headers with which clients name themselves, and may pass trailers on."""
    async with serving() as served:
        trailers = b"\r\nauthorization: Bearer x\r\nx-forwarded-for: 192.0.2.1\r\n\r\n"
        assert status(await served.ask((CHUNKED % b"123456789").removesuffix(b"\r\n\r\n") + trailers)) == 200
        assert served.names == {"host", "transfer-encoding"}


async def test_the_body_of_a_request_with_upgrade_is_not_another_request() -> None:
    """Behind a proxy that shares connections, everybody else would get the answer to the request before theirs."""
    upgrade = b"connection: upgrade\r\nupgrade: x\r\n\r\n"
    async with serving() as served:
        for request in (BODY % b"123456789", CHUNKED % GET[:9], BODY.replace(b"POST", b"CONNECT") % GET[:9]):
            answer = await served.ask(request.replace(b"\r\n\r\n", b"\r\n" + upgrade, 1) + GET)
            assert answer.count(b"HTTP/1.1") == 1
            assert b"UPGRADE_WITH_BODY" in answer
        assert served.bodies == []
        answer = await served.ask(GET.replace(b"\r\n\r\n", b"\r\n" + upgrade) + LAST)
        assert answer.count(b"served") == 2


SLOW = [
    (b"", b"head"),
    (b"GET / HTTP/1.1\r\nhos", b"head"),
    (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n12345", b"body"),
    (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n", b"body"),
]


@promise("heads, bodies and connections are limited before authentication")
async def test_a_slow_request_is_answered_with_408() -> None:
    async with serving() as served:
        for answer, (_, part) in zip(await asyncio.gather(*(served.ask(each) for each, _ in SLOW)), SLOW, strict=True):
            assert status(answer) == 408
            assert b"the %s of the request was not complete after 0.3 seconds" % part in answer


async def test_one_byte_at_a_time_does_not_extend_the_deadline() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        began, answer = time.monotonic(), asyncio.create_task(reader.read())
        for byte in GET * 100:
            writer.write(bytes([byte]))
            done, _ = await asyncio.wait({answer}, timeout=0.02)
            if done:
                break
        assert time.monotonic() - began < 5
        assert status(await answer) == 408
        writer.close()


@pytest.mark.parametrize(
    ("first", "rest"), [(GET, b"\r\n"), (b"POST /stream HTTP/1.1\r\ncontent-length: 5\r\n\r\n12", b"345")]
)
async def test_a_connection_without_a_next_request_is_closed(first: bytes, rest: bytes) -> None:
    """Uvicorn waited without end after any byte behind the answer."""
    async with serving(replace(LIMITS, head_seconds=60, body_seconds=60)) as served:
        reader, writer = await served.connect()
        writer.write(first)
        await reader.readuntil(b"HTTP/1.1")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(rest)
        async with asyncio.timeout(10):
            await reader.read()
        writer.close()


async def test_a_stream_that_has_begun_has_no_deadline() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(GET.replace(b"/ ", b"/stream ", 1))
        await reader.readuntil(b"first")
        # Longer than every deadline: those of connections that began later have passed.
        assert status(await served.ask(b"")) == 408
        served.release.set()
        await reader.readuntil(b"last")
        writer.close()


@promise("heads, bodies and connections are limited before authentication")
async def test_connections_are_limited_by_address_and_in_all() -> None:
    limits = ConnectionLimits(connections=7, connections_per_address=5)
    async with serving(limits) as served:
        kept = [await served.connect() for _ in range(5)]
        answer = await served.ask()
        assert status(answer) == 503
        assert b"too many connections from 127.0.0.1" in answer
        assert b"retry-after" in answer.lower()
        assert status(await served.ask(host="127.0.0.2")) == 200
        kept += [await served.connect(f"127.0.0.{n}") for n in (3, 4)]
        assert b"too many connections in all" in await served.ask(host="127.0.0.5")

        for _, writer in kept:
            writer.close()

        async def served_again() -> bool:
            return status(await served.ask()) == 200

        await wait_until(served_again)


BODY = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n%s"
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n9\r\n%s\r\n0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40, 41, 100_000])
async def test_pipelined_requests_are_answered_in_order_however_they_are_cut(size: int) -> None:
    bodies = [b"123456789", b"\r\n\r\n\n\n\r\nx", b"", b"\n\n\n\n\n\n\n\n\n", b"GET / HTT", b""]
    requests = BODY % bodies[0] + CHUNKED % bodies[1] + b"\r\n" + GET + BODY % bodies[3] + CHUNKED % bodies[4] + LAST
    async with serving(replace(LIMITS, head_seconds=10, body_seconds=10)) as served:
        reader, writer = await served.connect()
        writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = asyncio.create_task(reader.read())
        for at in range(0, len(requests), size):
            writer.write(requests[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)
        assert (await asyncio.wait_for(answers, 10)).count(b"served") == len(bodies)
        assert served.bodies == bodies
        writer.close()


async def test_what_is_pipelined_behind_a_stream_is_not_read_and_does_not_end_it() -> None:
    """Five megabytes of requests: they took 640 MB and 3.7 s."""
    post = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"
    async with serving() as served:
        reader, writer = await served.connect()
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        writer.write(GET.replace(b"/ ", b"/stream ", 1) + post + GET * (5_000_000 // len(GET)))
        await reader.readuntil(b"first")
        assert status(await served.ask(b"")) == 408  # the server has had time to read
        assert time.process_time() - began < 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
        [connection] = [each for each in served.connections if each.cycle is not None]
        assert len(connection._behind) <= READ_BYTES
        served.release.set()
        for _ in range(3):
            await reader.readuntil(b"served")
        assert served.bodies[:2] == [b"abc", b""]
        writer.transport.abort()


@promise("heads, bodies and connections are limited before authentication")
async def test_the_key_is_checked_before_the_body_is_read(start: Start) -> None:
    keys = {"ann": "a-key-of-sixteen-characters"}
    cases = product(("/v1/chat", "/v1/sessions/x/turns"), (("wrong", b"401"), (keys["ann"], b"100")))
    async with start(api_keys=keys) as engine:
        # A body is asked for with 100.
        for path, (key, expected) in cases:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(engine.url.rpartition(":")[2]))
            try:
                head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
                writer.write(f"{head}content-length: 5\r\nexpect: 100-continue\r\n\r\n".encode())
                async with asyncio.timeout(10):
                    assert (await reader.readline()).split(b" ")[1] == expected
            finally:
                writer.close()
                await writer.wait_closed()


async def test_responses_are_not_guessed_shared_or_kept(start: Start) -> None:
    async with start() as engine:
        for path in ("/v1/sessions", "/v1/no/such/path", "/v1/tools", "/metrics", "/openapi.json", "/"):
            headers = (await engine.client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff", path
            assert headers["cross-origin-resource-policy"] == "same-origin", path
            assert headers["cache-control"] == ("no-cache" if path == "/" else "no-store"), path


async def test_the_health_port_of_a_worker_has_the_limits_of_the_engine() -> None:
    """A head of 60 MB took 190 MB."""

    async def metrics(_: str) -> tuple[bytes, str]:
        return b"", "text/plain"

    served = Served()
    served.port = free_port()
    ready = Readiness(ready=True, parts={})
    async with health_server("127.0.0.1", served.port, readiness=lambda: ready, metrics=metrics):
        assert status(await served.ask(b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 100_000)) == 431
        kept = [await served.connect() for _ in range(100)]
        assert status(await served.ask()) == 503
        for _, writer in kept:
            writer.close()
