"""Raw bytes to the engine's port: heads, chunks, requests behind each other, all of them broken somewhere.

Each connection gets answers with a status below 500, or none, and is closed within the deadlines. The engine serves
others after each attempt.
"""

import asyncio
import re
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

from callstream_runtime.http_connection import ConnectionLimits
from tests.fuzz.loop import Attempt
from tests.fuzz.mutations import changed_bytes
from tests.integration.engines import Engine, Model, running_engine, settings
from tests.support.servers import LocalServer, embedded_binary

LIMITS = ConnectionLimits(head_seconds=0.5, body_seconds=0.5)
SECONDS = 20.0
"""How long a connection may stay open: the deadlines, the time that Uvicorn keeps idle ones, and a busy machine."""
CONNECTIONS = 50
KEY = b"a-key-of-sixteen-characters"
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")

METHODS = (
    b"GET",
    b"GET",
    b"POST",
    b"POST",
    b"DELETE",
    b"HEAD",
    b"OPTIONS",
    b"PUT",
    b"TRACE",
    b"CONNECT",
    b"PRI",
    b"get",
)
PATHS = (
    *(
        b"/",
        b"/healthz",
        b"/readyz",
        b"/metrics",
        b"/openapi.json",
        b"/assets/app.js",
        b"/assets/../x",
        b"/v1/sessions",
    ),
    *(b"/v1/chat", b"/v1/turns/x/events", b"/v1/sessions/%00/messages", b"/v1/sessions/%ff", b"/v1//", b"*", b"//x/y"),
    *(b"http://127.0.0.1/healthz", b"/%2e%2e/%2e%2e/etc/passwd", b"/v1/turns/" + b"a" * 9_000, b"/?" + b"a=b&" * 500),
    *(b"/ui/markdown", b"/v1/sessions?limit=99999999999999999999&before=%00", b"/v1/turns/x/tool-calls/y/content/-1"),
)
VERSIONS = (
    b"HTTP/1.1",
    b"HTTP/1.1",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"HTTP/9.9",
    b"HTTPS/1.1",
    b"",
)
HEADERS = (
    *(b"Content-Length: 5", b"Content-Length: 0", b"Content-Length: -1", b"Content-Length: 99999999999999999999"),
    *(b"Content-Length: 5\r\nContent-Length: 6", b"Content-Length: 5, 5", b"Content-Length: +5", b"Content-Length : 5"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nContent-Length: 5", b"Transfer-Encoding: gzip"),
    *(b"Transfer-Encoding : chunked", b"Transfer-Encoding: xchunked", b"Transfer-Encoding:\x0bchunked", b" folded: x"),
    *(b"Expect: 100-continue", b"Connection: close", b"Connection: keep-alive", b"Connection: Upgrade, HTTP2-Settings"),
    *(
        b"Upgrade: h2c",
        b"Upgrade: websocket",
        b"Content-Type: application/json",
        b"Content-Type: \xff",
        b"X: " + b"a" * 9_000,
    ),
    *(b"Host: evil.example", b"Host:", b"Origin: null", b"Accept: \xff", b"\x00: x", b"NoColon", b": empty", b"X:\x00"),
    *(
        b"Last-Event-ID: \xff",
        b"Last-Event-ID: 99999999999999999999-1",
        b"traceparent: 00-" + b"f" * 70,
        b"Cookie: a=\xff",
    ),
)
BODIES = (
    *(
        b"",
        b"hello",
        b'{"message": "Hi"}',
        b'{"message": ',
        b"5\r\nhello\r\n0\r\n\r\n",
        b"0\r\n\r\n",
        b"\xff\xfe",
        b"null",
    ),
    *(
        b"5;ext=" + b"a" * 200 + b"\r\nhello\r\n0\r\nTrailer: x\r\n\r\n",
        b"FFFFFFFFFFFFFFFFF\r\nx",
        b"-1\r\n",
        b"5\nhello\n0\n\n",
    ),
    *(b'{"texts": ["# a"]}', b"[" * 50_000, b'{"message": "\\ud800"}', b'{"message": "Hi", "sessionId": "\\u0000"}'),
)
PIECES = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"\x00",
    b"\xff",
    b" ",
    b":",
    b"HTTP/1.1",
    b"GET / HTTP/1.1\r\n\r\n",
    b"0\r\n\r\n",
)


@asynccontextmanager
async def http() -> AsyncGenerator[Attempt]:
    """An engine with a key and short deadlines; each attempt is several connections at once."""
    with tempfile.TemporaryDirectory() as folder:
        redis = LocalServer(embedded_binary(), Path(folder))
        redis.start()
        try:
            async with Model().serving() as model:
                configured = settings(Path(folder), redis.url, model.url, api_keys={"ann": KEY.decode()})
                async with running_engine(configured, limits=LIMITS) as engine:

                    async def attempt(random: Random, counts: Counter[str]) -> None:
                        async with asyncio.TaskGroup() as group:
                            for _ in range(CONNECTIONS):
                                group.create_task(_connection(engine, Random(random.random()), counts))
                        assert (await engine.client.get("/healthz")).status_code == 200

                    yield attempt
        finally:
            redis.stop()


async def _connection(engine: Engine, random: Random, counts: Counter[str]) -> None:
    """Send requests on one connection. Raises AssertionError if it stays open, or gets anything but an answer."""
    data = b"".join(_request(random) for _ in range(random.choice([1, 1, 2, 4])))
    for _ in range(random.choice([0, 0, 0, 1, 3])):
        data = changed_bytes(data, random, PIECES)
    counts["connections"] += 1
    counts["bytes"] += len(data)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(engine.url.rpartition(":")[2]))
    answer = b""
    try:
        async with asyncio.timeout(SECONDS):
            with suppress(ConnectionError):
                at = random.randint(0, len(data))
                writer.write(data[:at])
                await writer.drain()
                writer.write(data[at:])
                if random.random() < 0.5:
                    writer.write_eof()
            with suppress(ConnectionError):
                while part := await reader.read(65_536):
                    answer += part
    except TimeoutError:
        raise AssertionError(f"the connection was still open after {SECONDS:g} s: {data[:1000]}") from None
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    assert not answer or STATUS.match(answer), (data[:1000], answer[:300])
    for status in STATUS.findall(answer):
        counts[status.decode()] += 1
        assert status < b"500", (data[:1000], answer[:1000])


def _request(random: Random) -> bytes:
    version = b"HTTP/1.1" if random.random() < 0.8 else random.choice(VERSIONS)
    line = b" ".join(part for part in (random.choice(METHODS), random.choice(PATHS), version) if part)
    headers = [b"Host: 127.0.0.1"] if random.random() < 0.9 else []
    headers += [b"Authorization: Bearer " + KEY] if random.random() < 0.7 else []
    headers += random.choices(HEADERS, k=random.choice([0, 0, 0, 0, 1, 1, 3]))
    body = random.choice(BODIES) if random.random() < 0.6 else b""
    if body and random.random() < 0.9:
        headers += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    end = b"\r\n" if random.random() < 0.9 else b"\n"
    return end.join([line, *headers, b"", b""]) + body
