"""The short form of the scenario of streams that are cut again and again."""

from pathlib import Path

import pytest

from tests.chaos.report import Size
from tests.chaos.scenarios import cut_streams
from tests.support import nginx


@pytest.mark.skipif(nginx.missing() is not None, reason=nginx.missing() or "")
def test_streams_that_are_cut_at_random_have_no_gap_and_no_duplicate(tmp_path: Path) -> None:
    report = cut_streams.run(Size.SHORT, tmp_path)
    print(report)
    assert report.passed
