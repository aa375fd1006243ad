"""The crash table, by real kills of real MCP servers."""

from pathlib import Path

from tests.chaos.report import Size
from tests.chaos.scenarios import mcp_killed


def test_servers_that_are_killed_or_hang_leave_exactly_the_crash_table(tmp_path: Path) -> None:
    report = mcp_killed.run(Size.SHORT, tmp_path)
    print(report)
    assert report.passed
