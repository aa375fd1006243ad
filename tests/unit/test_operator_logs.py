"""`dialog-engine trace`: which lines of the logs of all replicas are about an id, and when they were written."""

from datetime import datetime

import pytest

from dialog_engine.operators.logs import Line, lines_about

JSON = (
    '{"timestamp":"2026-11-23T05:05:02.250Z","level":"INFO","logger":"x","message":"started","correlationId":"c-1"}\n'
)
HUMAN = "2026-11-23 05:05:02,185 WARNING plugins_mcp.handler: it failed correlationId=c-1\n"


def about(*lines: str, name: str = "c-1") -> list[Line]:
    return list(lines_about({name}, lines, "worker.log"))


@pytest.mark.parametrize(
    ("prefix", "source"),
    [
        ("", "worker.log"),
        ("engine-1  | ", "engine-1"),
        ("\x1b[36mengine-2     |\x1b[0m ", "engine-2"),
        ("\x1b[2Kengine-1  | ", "engine-1"),
        ("worker-1  | 2026-11-23T05:05:03.123456789Z ", "worker-1"),
        ("[pod/callstream-engine-5d9-abc/engine] ", "callstream-engine-5d9-abc/engine"),
        ("2026-11-23T05:05:03.1Z ", "worker.log"),
    ],
)
def test_lines_of_both_formats_are_found_whatever_collected_them(prefix: str, source: str) -> None:
    lines = [JSON, JSON.replace("c-1", "c-2"), HUMAN, "Traceback …\n"]
    found = about(*(prefix + line for line in lines))
    assert [(line.source, line.text, line.ids) for line in found] == [
        (source, "INFO x: started correlationId=c-1", {"correlationId": "c-1"}),
        (source, "WARNING plugins_mcp.handler: it failed correlationId=c-1\nTraceback …", {"correlationId": "c-1"}),
    ]
    assert found[0].at_ms == round(datetime.fromisoformat("2026-11-23T05:05:02.250Z").timestamp() * 1000)
    assert found[1].at_ms == round(datetime(2026, 11, 23, 5, 5, 2, 185_000).astimezone().timestamp() * 1000)


def test_a_traceback_belongs_to_the_last_line_of_its_own_replica() -> None:
    mine, other = f"engine-1  | {HUMAN}", f"engine-2  | {HUMAN.replace('c-1', 'c-2')}"
    found = about(mine, other, "engine-2  | of engine 2\n", "engine-1  | of engine 1\n", other)
    assert [line.text.partition("\n")[2] for line in found] == ["of engine 1"]


def test_a_longer_id_and_a_line_that_is_no_log_line_are_left_out() -> None:
    broken = ('{"correlationId": "c-1"', '{"timestamp": 7, "a": "c-1"}', '{"timestamp": "c-1"}')
    assert not about("c-1\n", '["c-1"]\n', *broken)
    assert not about(JSON.replace("c-1", "c-10"), JSON.replace("c-1", "x-c-1"))
    assert len(about(JSON.replace("c-1", "a:b/c"), name="a:b/c")) == 1  # an id of another producer
