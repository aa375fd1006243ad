"""Replies of Redis get lost, of every script and every read: no request is doubled, none is forgotten."""

from pathlib import Path

from tests.chaos.report import Size
from tests.chaos.scenarios import replies_lost


def test_lost_replies_double_nothing_and_lose_nothing(tmp_path: Path) -> None:
    assert not replies_lost.run(Size.SHORT, tmp_path).findings
