"""What operators read about MCP servers that were not started."""

import asyncio
import logging
from pathlib import Path

import pytest
import uvloop

from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.transport_options import Stdio
from tests.integration.servers import owned
from tests.support.waiting import wait_until
from tests.support.working import working


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    ("child", "error"),
    [
        (Stdio("no-such-program"), "the command 'no-such-program' cannot be started: No such file or directory"),
        (
            Stdio("true", cwd="/no/such/folder"),
            "the command 'true' cannot be started in the folder (cwd) '/no/such/folder': No such file or directory",
        ),
        (Stdio("/dev/null"), "the command '/dev/null' cannot be started: Permission denied"),
    ],
)
def test_a_command_that_cannot_be_started_is_named(child: Stdio, error: str, loop: object) -> None:
    async def last_error() -> str | None:
        async with owned(ServerSpec("lost", child)) as server:
            await asyncio.wait_for(server.attempted.wait(), 10)
            return server.last_error

    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        assert runner.run(last_error()) == error


@pytest.mark.anyio
async def test_a_server_that_its_operator_has_disabled_is_no_error_and_a_mistake_is_one(
    tmp_path: Path, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"off": {"command": "x", "disabled": true}, "wrong": {}}}')
    caplog.set_level(logging.INFO)
    async with working(redis_url, path):
        await wait_until(lambda: "is running" in caplog.text)
    levels = {
        record.getMessage().split("'")[1]: record.levelname for record in caplog.records if "not used" in record.msg
    }
    assert levels == {"off": "INFO", "wrong": "ERROR"}
