"""The tool inside the worker, for measurements: offered when it is switched on, with a warning, and else never."""

from pathlib import Path

import pytest

from plugins_contract.outcomes import CallState, TextBlock
from plugins_mcp.mcp.echo import NAME, TOOL
from tests.support.waiting import wait_until
from tests.support.working import calling, working

pytestmark = pytest.mark.anyio

WARNING = "DEVELOPMENT_ECHO is set"


def servers_file(folder: Path) -> Path:
    file = folder / "mcp.json"
    file.write_text('{"mcpServers": {"none": {"command": "none", "disabled": true}}}')
    return file


@pytest.mark.parametrize("switched_on", [True, False])
async def test_the_development_echo_is_offered_only_where_it_is_switched_on(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, switched_on: bool
) -> None:
    config = servers_file(tmp_path)
    async with calling(redis_url) as caller, working(redis_url, config, development_echo=switched_on):
        await wait_until(lambda: caller.command("SISMEMBER", caller.keys.catalog, "none"), what="the catalog")
        assert bool(await caller.command("SISMEMBER", caller.keys.catalog, NAME)) is switched_on
        assert (WARNING in caplog.text) is switched_on
        assert "'none' is not used" not in caplog.text  # its operator's wish is no warning
        if switched_on:
            outcome = await caller.outcome(await caller.call(TOOL, server=NAME, text="hello"))
            assert (outcome.state, outcome.content) == (CallState.SUCCEEDED, (TextBlock("hello"),))
