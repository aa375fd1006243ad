"""Draws the panels of a dashboard as one SVG picture, from what a Prometheus answers to their queries."""

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

import pygal
from pygal.style import Style

from tests.support.prometheus import Series

# pygal adds a finder of modules for its plugins, of a kind that Python warns about at each later import.
sys.meta_path[:] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]

Json = dict[str, Any]
COLUMN, ROW = 50, 34
"""The size in pixels of one unit of a dashboard's grid."""
STYLE: Any = Style(
    background="#ffffff", plot_background="#ffffff", font_family="sans-serif", title_font_size=14, label_font_size=10,
    major_label_font_size=10, legend_font_size=11, no_data_font_size=14,
)  # fmt: skip
UNITS: dict[str, Callable[[float], str]] = {
    "s": lambda value: f"{value:.3g} s",
    "reqps": lambda value: f"{value:.3g}/s",
    "percentunit": lambda value: f"{100 * value:.3g} %",
    "bytes": lambda value: f"{value / 2**20:.4g} MiB",
}


@dataclass(frozen=True)
class Curve:
    """One line of a panel: seconds since the beginning, and values."""

    name: str
    points: list[tuple[float, float]]


def picture(dashboard: Json, ask: Callable[[str], Iterable[Series]], *, began: float) -> bytes:
    """The dashboard as an SVG document. `ask` answers a query; `began`, in Unix seconds, is shown as 0."""
    panels = dashboard["panels"]
    width = COLUMN * max(panel["gridPos"]["x"] + panel["gridPos"]["w"] for panel in panels)
    height = ROW * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    whole = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", width=str(width))
    SubElement(whole, "rect", width="100%", height="100%", fill="#ffffff")
    whole.append(_styles())
    for panel in panels:
        curves = list(_curves(panel, ask, began))
        _place(whole, panel, [curve for curve in curves if curve.name] or curves)
    return tostring(whole)


def _curves(panel: Json, ask: Callable[[str], Iterable[Series]], began: float) -> Iterator[Curve]:
    """The lines of a panel. One without a name only says that there is nothing: `… or on() vector(0)`."""
    for target in panel.get("targets", ()):
        for series in ask(target["expr"]):
            yield Curve(
                _name(target["legendFormat"], series.labels),
                [(at - began, value) for at, value in series.points if not math.isnan(value)],
            )


def _name(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda label: labels.get(label[1], ""), legend).strip()


def _place(whole: Element, panel: Json, curves: list[Curve]) -> None:
    place = panel["gridPos"]
    at = {"x": str(COLUMN * place["x"]), "y": str(ROW * place["y"])}
    size = {"width": str(COLUMN * place["w"]), "height": str(ROW * place["h"])}
    unit = UNITS.get(panel.get("fieldConfig", {}).get("defaults", {}).get("unit"), lambda value: f"{value:.4g}")
    match panel["type"]:
        case "timeseries":
            drawn = _chart(panel["title"], curves, unit, COLUMN * place["w"], ROW * place["h"])
        case "stat":
            drawn = Element("svg")
            _text(drawn, panel["title"], y="30%", size="11")
            _text(drawn, ", ".join(unit(curve.points[-1][1]) for curve in curves if curve.points), y="75%", size="32")
        case _:
            drawn = Element("svg")
            _text(drawn, panel["title"], y="70%", size="16", weight="bold")
    drawn.attrib |= at | size
    whole.append(drawn)


def _text(parent: Element, text: str, *, y: str, size: str, weight: str = "normal") -> None:
    fields = {"x": "12", "y": y, "font-size": size, "font-weight": weight, "font-family": "sans-serif"}
    SubElement(parent, "text", fields).text = text


def _chart(title: str, curves: list[Curve], unit: Callable[[float], str], width: int, height: int) -> Element:
    chart: Any = pygal.XY(
        width=width, height=height, title=title, style=STYLE, js=(), no_prefix=True, show_dots=False, margin=8,
        legend_at_bottom=True, truncate_legend=34, x_value_formatter=_seconds, value_formatter=unit, max_scale=5,
        include_x_axis=True,
    )  # fmt: skip
    for curve in curves:
        chart.add(curve.name, curve.points)
    drawn: Element = chart.render_tree()
    for definitions in drawn.findall("defs"):
        drawn.remove(definitions)  # scripts, and the styles that all charts share
    for path in drawn.iter("path"):
        path.set("d", re.sub(r"(\.\d)\d+", r"\1", path.get("d", "")))
    return drawn


def _seconds(value: float) -> str:
    return f"{value:.0f} s"


def _styles() -> Element:
    """The styles of a chart with as many colours as any has."""
    chart: Any = pygal.XY(style=STYLE, js=(), no_prefix=True)
    for number in range(len(STYLE.colors)):
        chart.add(str(number), [(0, 0)])
    found: Element | None = chart.render_tree().find("defs/style")
    assert found is not None
    return found
