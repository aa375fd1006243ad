"""Pictures of dashboards: what is drawn, and that those of the documentation show the dashboards as they are."""

import re
from html import unescape

import pytest

from tests.support.dashboards import dashboards
from tests.support.panels import picture
from tests.support.processes import ROOT
from tests.support.prometheus import Series

PICTURES = ROOT / "docs" / "pictures"
NAMES = ("users", "stream", "servers")
PANEL = {
    "type": "timeseries",
    "title": "Calls",
    "gridPos": {"x": 0, "y": 0, "w": 8, "h": 7},
    "targets": [{"expr": "calls", "legendFormat": "{{state}}"}],
}


def titles(text: str) -> str:
    """All texts of a picture; long titles are drawn in several lines."""
    return " ".join(unescape(found) for found in re.findall(r"<text [^>]*>([^<]*)<", text))


def test_a_panel_has_its_title_and_a_line_for_each_series() -> None:
    answers = [Series({"state": each}, [(100, 1), (105, 2), (110, float("nan"))]) for each in ("ok", "failed")]
    drawn = picture({"panels": [PANEL]}, {"calls": answers}.__getitem__, began=100).decode()

    assert {"Calls", "ok", "failed"} <= set(titles(drawn).split())
    assert len(re.findall(r'<path [^>]*class="line reactive', drawn)) == 2
    assert "<script" not in drawn


@pytest.mark.parametrize("name", NAMES)
def test_the_documented_picture_shows_the_panels_of_today(name: str) -> None:
    shown = titles((PICTURES / f"{name}.svg").read_text())

    panels = [panel for panel in dashboards()[name]["panels"] if panel["type"] in ("timeseries", "stat")]
    assert [panel["title"] for panel in panels if panel["title"] not in shown] == [], "python -m tests.pictures"


def test_the_pictures_are_small() -> None:
    assert sum(file.stat().st_size for file in PICTURES.iterdir()) < 1_000_000
