"""A provider on a real connection, whose answers are scripted byte by byte."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

SSE = "text/event-stream; charset=utf-8"


class Exchange:
    """One request and its answer, byte by byte as the test wants it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def start(self, status: int = 200, content_type: str = SSE, **headers: str) -> None:
        fields = {"content-type": content_type, "transfer-encoding": "chunked"} | headers
        lines = [f"HTTP/1.1 {status} -", *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items())]
        self._writer.write("\r\n".join([*lines, "", ""]).encode())
        await self._writer.drain()

    async def raw(self, data: bytes) -> None:
        """Bytes as they are, in the place of an answer."""
        self._writer.write(data)
        await self._writer.drain()

    async def send(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def send_at_once(self, *chunks: bytes) -> None:
        """Chunks of the response that arrive together."""
        self._writer.write(b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks))
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def until_closed(self) -> None:
        with suppress(ConnectionError):
            assert await self._reader.read(1) == b""


Script = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True)
class Asked:
    """A request as it came. `target` is what stands in its first line; names of `fields` are in lower case."""

    method: str
    target: str
    fields: dict[str, str]
    body: dict[str, Any]


class Provider:
    """Answers requests by `scripts`, one after the other; the last one for all that follow."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts: list[Script] = list(scripts)
        self.requests: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.asked: list[Asked] = []
        self.connections = 0
        self.open = 0
        self.url = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._read(reader)
                script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
                await script(Exchange(reader, writer))
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.open -= 1

    async def _read(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = json.loads(await reader.readexactly(int(fields["content-length"])))
        method, target, _ = first.split(" ")
        self.asked.append(Asked(method, target, fields, body))
        self.heads.append(head.lower())
        self.requests.append(body)


class CutError(ConnectionError):
    """Raised by a script to drop the connection."""


def answer(*reads: bytes, status: int = 200, content_type: str = SSE, cut: bool = False, **headers: str) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.start(status, content_type, **headers)
        for read in reads:
            await exchange.send(read)
        if cut:
            raise CutError
        await exchange.end()

    return script


def refusal(status: int, body: object = None) -> Script:
    return answer(json.dumps(body).encode(), status=status, content_type="application/json", retry_after_ms="1")


@asynccontextmanager
async def serving(provider: Provider, path: str = "/v1", host: str = "127.0.0.1") -> AsyncGenerator[Provider]:
    async with await asyncio.start_server(provider.connected, host, 0) as server:
        port = server.sockets[0].getsockname()[1]
        provider.url = f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"
        yield provider
