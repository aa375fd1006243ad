"""MCP servers for the tests, well-behaved and not, and what it takes to use them."""

import asyncio
import socket
import sys
import textwrap
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from plugins_contract.catalog import ServerState
from plugins_mcp.mcp.circuit_breaker import ConnectionPolicy
from plugins_mcp.mcp.server import McpServer
from plugins_mcp.mcp.spec import ServerOptions, ServerSpec
from plugins_mcp.mcp.transport_options import Http, Sse, Stdio
from tests.support.forked import forked
from tests.support.waiting import wait_until

QUICK = ConnectionPolicy(first_delay=0.05, longest_delay=0.2, relist_gap=0.01, drain_timeout=1.0)


def demo_stdio(**options: object) -> ServerSpec:
    command, *arguments = forked("tests.integration.servers.demo")
    return ServerSpec("demo", Stdio(command, tuple(arguments)), ServerOptions(**options))  # type: ignore[arg-type]


def script(source: str, **options: object) -> ServerSpec:
    """A server that is a few lines of Python speaking JSON lines."""
    return ServerSpec("script", Stdio(sys.executable, ("-c", source)), ServerOptions(**options))  # type: ignore[arg-type]


_SPEAKER = """
import json, os, sys, time

def say(request, result):
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)

for line in sys.stdin:
    request = json.loads(line)
    match request["method"]:
        case "initialize":
            info = {"name": "speaker", "version": "1"}
            say(request, {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
        case "tools/list":
            say(request, {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
        case "tools/call":
"""


def speaking(on_call: str, **options: object) -> ServerSpec:
    """A server with one tool, `t`: at each call it runs `on_call`, which has `request` and `say(request, result)`."""
    body = textwrap.indent(textwrap.dedent(on_call).strip(), " " * 12)
    return script(_SPEAKER + body, **{"protocol": "legacy", **options})


def remote(url: str, *, headers: Mapping[str, str] | None = None, sse: bool = False, **options: object) -> ServerSpec:
    transport = (Sse if sse else Http)(url, headers or {})
    return ServerSpec("remote", transport, ServerOptions(**options))  # type: ignore[arg-type]


@asynccontextmanager
async def connected(spec: ServerSpec, policy: ConnectionPolicy = QUICK) -> AsyncGenerator[McpServer]:
    """A server whose owner runs for as long as the block, entered once it is ready."""
    async with owned(spec, policy) as server:
        await wait_until(lambda: ready(server), what=f"readiness of {spec.name} ({server.last_error})")
        yield server


@asynccontextmanager
async def owned(spec: ServerSpec, policy: ConnectionPolicy = QUICK) -> AsyncGenerator[McpServer]:
    """A server whose owner runs for as long as the block, whatever becomes of it."""
    server = McpServer(spec, policy=policy)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run())
        try:
            yield server
        finally:
            server.stop()


def ready(server: McpServer) -> bool:
    """Whether it is ready. What a trusted server lists is accepted, as an operator would."""
    if server.spec.options.trust and server.listed is not None:
        server.review(server.listed, server.listed)
    return server.state is ServerState.READY


def tool_names(server: McpServer) -> list[str]:
    return [tool.tool for tool in server.catalog.tools] if server.catalog else []


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
