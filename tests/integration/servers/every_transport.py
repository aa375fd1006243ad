"""The scripted server over each transport that a worker has. What a tool does is a function of the test."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.integration.servers.scripted import LEGACY, MODERN, Behaviour, Request, ScriptedServer
from tests.support.waiting import wait_until

TRANSPORTS = ["stdio", "stateless", "session", "sse"]
"""A child process, Streamable HTTP of today and of 2025, and HTTP+SSE of 2024."""

_BRIDGE = """
import json, os, socket, sys, threading

peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
about = {"args": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)}
peer.sendall(json.dumps({"method": "started", "params": about}).encode() + b"\\n")

def incoming():
    try:
        while data := peer.recv(65536):
            os.write(1, data)
    finally:
        os._exit(0)

threading.Thread(target=incoming, daemon=True).start()
while data := os.read(0, 65536):
    peer.sendall(data)
"""
"""A child process whose standard streams lead to the scripted server. First it says how it was started."""


class LineRequest(Request):
    """A request whose answers are lines."""

    async def respond(self, status: int, body: bytes = b"", kind: str = "", **headers: str) -> None:
        await self.event(body)

    async def event_stream(self) -> None: ...

    async def event(self, data: bytes) -> None:
        await self.raw(data + b"\n" if data else b"")


class StreamRequest(LineRequest):
    """A request whose answers are events in the stream that the client has opened."""

    async def event(self, data: bytes) -> None:
        if data:
            await Request.event(self, data)


@dataclass
class EveryTransport(ScriptedServer):
    """The server. `transport` is one of TRANSPORTS."""

    transport: str = "stateless"
    _stream: asyncio.StreamWriter | None = None
    _answers: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def entry(self, **options: Any) -> dict[str, Any]:
        """The server in `mcp.json`."""
        if self.transport == "stdio":
            return {"command": sys.executable, "args": ["-c", _BRIDGE, str(self.port)], **options}
        return {"type": "sse" if self.transport == "sse" else "http", "url": self.url, **options}

    async def cancelled(self, request: Request) -> None:
        """Wait until the client has cancelled a request: today by closing its connection, before by a notification."""
        if self.transport == "stateless":
            await asyncio.wait_for(request.gone.wait(), 10)
            return
        await wait_until(
            lambda: (
                request.message["id"]
                in [seen.params["requestId"] for seen in self.requests if seen.method == "notifications/cancelled"]
            )
        )

    async def cut(self, request: Request) -> None:
        writer = self._stream if self.transport == "sse" and self._stream else request.writer
        transport: asyncio.WriteTransport = writer.transport
        transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.transport != "stdio":
            await super()._connection(reader, writer)
            return
        gone = asyncio.Event()
        with suppress(ConnectionError):
            while line := await reader.readline():
                request = LineRequest({}, json.loads(line), writer, gone)
                self.requests.append(request)
                self._answer_aside(request)
        gone.set()
        writer.close()

    async def _answer(self, request: Request) -> None:
        if self.transport != "sse":
            await super()._answer(request)
        elif request.headers[":method"] == "GET":
            self._stream = request.writer
            await request.event_stream()
            endpoint = f"event: endpoint\ndata: {request.headers[':path']}\n\n"
            await request.raw(f"{len(endpoint):x}\r\n{endpoint}\r\n".encode())
            await request.gone.wait()
        else:
            await request.respond(202, kind="")
            assert self._stream is not None
            self._answer_aside(StreamRequest(request.headers, request.message, self._stream, request.gone))

    async def stop(self) -> None:
        for task in self._answers:
            task.cancel()
        await super().stop()

    async def _answer_alone(self, request: Request) -> None:
        with suppress(ConnectionError):
            await super()._answer(request)

    def _answer_aside(self, request: Request) -> None:
        """Others are read meanwhile."""
        task = asyncio.create_task(self._answer_alone(request))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)


@asynccontextmanager
async def over(transport: str, tools: Mapping[str, Behaviour]) -> AsyncGenerator[EveryTransport]:
    """A running server whose tools behave as given."""
    era = MODERN if transport in ("stdio", "stateless") else LEGACY
    server = EveryTransport(era, dict(tools), transport=transport)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def report(request: Request, **fields: Any) -> None:
    params = {"progressToken": request.params["_meta"]["progressToken"], **fields}
    await request.event(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode())


async def finish(request: Request, **fields: Any) -> None:
    await request.event(request.envelope(result={"content": [], "resultType": "complete", **fields}))


async def count(request: Request) -> None:
    """Report progress each tenth of a second, as often as asked."""
    await request.event_stream()
    for step in range(1, request.params["arguments"]["to"] + 1):
        await asyncio.sleep(0.1)
        await report(request, progress=step, total=step, message=f"step {step}")
    await finish(request)
