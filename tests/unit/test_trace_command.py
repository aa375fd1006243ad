"""`plugins-mcp trace`: which lines of a log belong to a call, and when they were written."""

from datetime import datetime
from pathlib import Path

from plugins_mcp.operators.arguments import Trace, read_arguments
from plugins_mcp.operators.trace import log_lines

JSON = (
    '{"timestamp":"2026-11-23T05:05:02.250Z","level":"INFO","logger":"x","message":"started","correlationId":"c-1"}\n'
)
HUMAN = "2026-11-23 05:05:02,185 WARNING plugins_mcp.handler: it failed correlationId=c-1\n"
FILE = Path("logs/worker.log")


def test_lines_of_both_formats_are_found_by_the_ids_that_they_name() -> None:
    found = log_lines([JSON, JSON.replace("c-1", "c-2"), HUMAN, "something else\n"], ["c-1"], FILE)
    assert [line.text for line in found] == [
        "INFO x: started correlationId=c-1",
        "WARNING plugins_mcp.handler: it failed correlationId=c-1\nsomething else",
    ]
    assert {line.source for line in found} == {"worker.log"}
    assert found[0].at_ms == round(datetime.fromisoformat("2026-11-23T05:05:02.250Z").timestamp() * 1000)
    assert found[1].at_ms == round(datetime(2026, 11, 23, 5, 5, 2, 185_000).astimezone().timestamp() * 1000)


def test_a_line_that_is_not_a_log_line_is_left_out() -> None:
    assert not log_lines(
        ["c-1\n", '{"correlationId": "c-1"\n', '["c-1"]\n', '{"timestamp": 7, "a": "c-1"}\n'], ["c-1"], FILE
    )


def test_the_command_takes_any_number_of_logs() -> None:
    assert read_arguments(["trace", "c-1", "--log", "a", "--log", "b"]) == Trace("c-1", (Path("a"), Path("b")))
    assert read_arguments(["trace", "c-1"]) == Trace("c-1", ())
