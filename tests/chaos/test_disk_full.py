"""Real disks fill up, under SQLite and Redis: calls are refused or wait, none is lost or run again, and it heals."""

from pathlib import Path

import pytest

from tests.chaos.report import Size, UnableHereError
from tests.chaos.scenarios import disk_full


def test_a_full_disk_refuses_or_waits_and_heals(tmp_path: Path) -> None:
    try:
        report = disk_full.run(Size.SHORT, tmp_path)
    except UnableHereError as why:
        pytest.skip(str(why))
    assert not report.findings
