"""Replies of Redis get lost, of every script and every read: no request is doubled, none is forgotten."""

from pathlib import Path

from tests.chaos.behind_proxies import SCRIPTS
from tests.chaos.report import Size
from tests.chaos.scenarios import replies_lost


def test_lost_replies_double_nothing_and_lose_nothing(tmp_path: Path) -> None:
    report = replies_lost.run(Size.SHORT, tmp_path)

    assert not report.findings
    lost = str(report.figures["replies lost of each script"])
    assert not [script for script in SCRIPTS if f"{script.upper()} 0" in lost]
