"""The short form of the scenario of clients that do not read."""

from pathlib import Path

from tests.chaos.report import Size
from tests.chaos.scenarios import frozen_clients


def test_clients_that_do_not_read_are_dropped_cost_little_and_go_on_when_they_wake_up(tmp_path: Path) -> None:
    report = frozen_clients.run(Size.SHORT, tmp_path)
    print(report)
    assert report.passed
