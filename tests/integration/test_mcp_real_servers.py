"""Servers that other people wrote."""

import json
import sys
from pathlib import Path

import pytest

from deploy.local.ports import free_port
from plugins_contract.outcomes import CallProgress, CallState, LinkBlock, MediaBlock, TextBlock, ToolOutcome
from plugins_mcp.mcp import (
    Answered,
    McpServer,
    NotSent,
    ServerSpec,
    Stdio,
    TimedOut,
    to_outcome,
)
from tests.integration.servers import (
    accepts,
    connected,
    owned,
    ready,
    remote,
)
from tests.marks import exhaustive
from tests.support.everything import everything_server
from tests.support.processes import running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, exhaustive("MCP servers of others")]
BIN = Path(sys.executable).parent


async def outcome(server: McpServer, tool: str, **arguments: object) -> ToolOutcome:
    result = await server.call(tool, arguments, timeout_s=20)
    assert isinstance(result, Answered), result
    return to_outcome(result.result)


def text(outcome: ToolOutcome) -> str:
    return "\n".join(block.text for block in outcome.content if isinstance(block, TextBlock))


async def test_the_time_server_tells_the_time_and_refuses_nonsense() -> None:
    async with connected(ServerSpec("time", Stdio(str(BIN / "mcp-server-time")))) as server:
        assert "Europe/Berlin" in text(await outcome(server, "get_current_time", timezone="Europe/Berlin"))
        refused = await outcome(server, "get_current_time", timezone="Nowhere/Land")
        assert refused.state is CallState.FAILED
        assert refused.error is not None
        assert "Nowhere/Land" in refused.error.message


async def test_the_everything_server_over_http_restarts() -> None:
    path, port = everything_server(), free_port()
    async with owned(remote(f"http://127.0.0.1:{port}/mcp")) as server:
        async with running(["node", path, "streamableHttp"], env={"PORT": str(port)}) as process:
            await wait_until(lambda: process.ready(lambda: accepts(port)), 30)
            await wait_until(lambda: ready(server))
            await use_everything(server)
            assert isinstance(await server.call(LONG, {"duration": 9, "steps": 3}, timeout_s=0.5), TimedOut)
            generation = server.generation
            process.kill()
        async with running(["node", path, "streamableHttp"], env={"PORT": str(port)}) as process:
            await wait_until(lambda: process.ready(lambda: accepts(port)), 30)
            first = await server.call("echo", {"message": "again"}, timeout_s=10)
            assert isinstance(first, NotSent | Answered)
            await wait_until(lambda: server.generation > generation and ready(server))
            assert text(await outcome(server, "echo", message="again")) == "Echo: again"


LONG = "trigger-long-running-operation"


async def use_everything(server: McpServer) -> None:
    assert text(await outcome(server, "echo", message="hi")) == "Echo: hi"
    image = await outcome(server, "get-tiny-image")
    assert [block.mime_type for block in image.content if isinstance(block, MediaBlock)] == ["image/png"]
    structured = await outcome(server, "get-structured-content", location="New York")
    assert "conditions" in json.loads(text(structured))  # the text has it already: it is sent once
    links = await outcome(server, "get-resource-links", count=3)
    assert sum(isinstance(block, LinkBlock) for block in links.content) == 3
    seen: list[CallProgress] = []
    result = await server.call(LONG, {"duration": 0.2, "steps": 4}, timeout_s=20, on_progress=seen.append)
    assert isinstance(result, Answered)
    assert [progress.progress for progress in seen] == [1, 2, 3, 4]
