"""The short form of the scenario: Stop at every moment of a turn."""

from pathlib import Path

from tests.chaos.report import Size
from tests.chaos.scenarios import stops
from tests.chaos.test_scenarios import held


def test_what_users_are_told_after_stop_is_what_happened(tmp_path: Path) -> None:
    assert held(stops.run(Size.SHORT, tmp_path))
