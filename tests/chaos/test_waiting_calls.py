"""Many calls wait at one engine: few connections, and no bell is needed for an answer to arrive."""

from pathlib import Path

from tests.chaos.report import Size
from tests.chaos.scenarios import waiting_calls


def test_thousands_of_calls_wait_on_few_connections_and_lost_bells_are_made_good(tmp_path: Path) -> None:
    assert not waiting_calls.run(Size.SHORT, tmp_path).findings
