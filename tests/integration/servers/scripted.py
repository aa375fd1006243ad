"""An MCP server over bare HTTP, in the test's own process, that answers tool calls exactly as the test says.

A tool's behaviour is a function that writes bytes; everything around it (handshake, listing, sessions) is proper.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
REASONS = {200: "OK", 202: "Accepted", 307: "Temporary Redirect"}


@dataclass
class Request:
    """One HTTP request that carries a JSON-RPC message."""

    headers: dict[str, str]
    message: dict[str, Any]
    writer: asyncio.StreamWriter
    gone: asyncio.Event
    """Set when the client closes the connection."""

    @property
    def method(self) -> str:
        return self.message.get("method", "")

    @property
    def tool(self) -> str:
        return self.params.get("name", "")

    @property
    def params(self) -> dict[str, Any]:
        return self.message.get("params", {})

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def respond(self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Whatever')}", f"content-length: {len(body)}"]
        lines += [f"content-type: {kind}"] if kind else []
        lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
        await self.raw("\r\n".join([*lines, "", ""]).encode() + body)

    async def result(self, result: dict[str, Any], **headers: str) -> None:
        await self.respond(200, self.envelope(result=result), **headers)

    async def text(self, text: str) -> None:
        await self.result({"content": [{"type": "text", "text": text}], "resultType": "complete"})

    async def error(self, code: int, message: str, status: int = 200) -> None:
        await self.respond(status, self.envelope(error={"code": code, "message": message}))

    async def event_stream(self) -> None:
        """The head of an answer that is an event stream without a known end."""
        await self.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    async def event(self, data: bytes) -> None:
        chunk = b"event: message\ndata: " + data + b"\n\n"
        await self.raw(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")

    async def hang_up(self) -> None:
        transport: asyncio.WriteTransport = self.writer.transport
        transport.abort()

    def envelope(self, **fields: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": self.message.get("id"), **fields}).encode()


Behaviour = Callable[[Request], Awaitable[None]]


@dataclass
class ScriptedServer:
    """The server. `tools` is what it lists, in pages of `page` tools.

    `requests` is everything it was asked, unless `keep_requests` is False.
    """

    era: str = MODERN
    behaviours: dict[str, Behaviour] = field(default_factory=dict[str, Behaviour])
    tools: list[Any] = field(default_factory=list[Any])
    page: int = 100
    requests: list[Request] = field(default_factory=list[Request])
    keep_requests: bool = True
    tls: ssl.SSLContext | None = None
    session: int = 1
    port: int = 0
    _connections: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        origin = f"https://localhost:{self.port}" if self.tls else f"http://127.0.0.1:{self.port}"
        return f"{origin}/mcp?key=secret-in-url"

    def methods(self) -> list[str]:
        return [request.method for request in self.requests]

    def calls(self, tool: str) -> list[Request]:
        return [request for request in self.requests if request.method == "tools/call" and request.tool == tool]

    async def start(self) -> None:
        """Listen, on the same port as before when it is started again."""
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Interruption all connections and listen no more."""
        assert self._server is not None
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        gone = asyncio.Event()
        try:
            while request := await _read(reader, writer, gone):
                if self.keep_requests:
                    self.requests.append(request)
                async with asyncio.TaskGroup() as group:
                    # The client sends nothing while it waits: what can be read now is the end.
                    watch = group.create_task(_watch(reader, gone))
                    await self._answer(request)
                    watch.cancel()
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            gone.set()
            self._connections.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(self, request: Request) -> None:
        if request.method in self.behaviours:
            await self.behaviours[request.method](request)
        elif request.headers.get(":method", "POST") != "POST":
            await request.respond(405, kind="")
        elif request.headers.get("mcp-session-id", str(self.session)) != str(self.session):
            await request.error(-32600, "Session not found", status=404)
        elif "id" not in request.message:
            await request.respond(202, kind="")
        else:
            await self._answer_request(request)

    async def _answer_request(self, request: Request) -> None:
        about = {"name": "scripted", "version": "1"}
        match request.method:
            case "server/discover" if self.era == MODERN:
                await request.result(
                    {
                        "supportedVersions": [MODERN],
                        "capabilities": {"tools": {}},
                        "serverInfo": about,
                        "resultType": "complete",
                        "ttlMs": 0,
                        "cacheScope": "public",
                    }
                )
            case "initialize" if self.era == LEGACY:
                await request.result(
                    {"protocolVersion": LEGACY, "capabilities": {"tools": {}}, "serverInfo": about},
                    mcp_session_id=str(self.session),
                )
            case "tools/list":
                begin = int(request.params.get("cursor", 0))
                page: dict[str, Any] = {"tools": self._listed()[begin : begin + self.page]}
                if begin + self.page < len(self._listed()):
                    page["nextCursor"] = str(begin + self.page)
                await request.result({**page, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"})
            case "tools/call" if request.tool in self.behaviours:
                await self.behaviours[request.tool](request)
            case _:
                await request.error(-32601, "Method not found")

    def _listed(self) -> list[Any]:
        return self.tools or [{"name": name, "inputSchema": {"type": "object"}} for name in self.behaviours]


@asynccontextmanager
async def scripted(era: str = MODERN, **behaviours: Behaviour) -> AsyncGenerator[ScriptedServer]:
    """A running server whose tools behave as given."""
    server = ScriptedServer(era, dict(behaviours))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gone: asyncio.Event) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip().split("\r\n")
    headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    headers[":method"], headers[":path"], _ = first.split(" ")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(headers, json.loads(body) if body else {}, writer, gone)


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
    try:
        if not await reader.read(1):
            gone.set()
    except ConnectionError:
        gone.set()
