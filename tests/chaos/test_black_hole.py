"""Connections to Redis fall silent without an end: it is noticed, and nobody waits for ever."""

from pathlib import Path

from tests.chaos.report import Size
from tests.chaos.scenarios import black_hole


def test_silence_is_noticed_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    assert not black_hole.run(Size.SHORT, tmp_path).findings
