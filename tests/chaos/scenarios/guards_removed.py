"""Each guard is taken out in turn: the scenario that holds with it must break without it."""

import importlib
from pathlib import Path
from typing import Any

from tests.chaos.report import Report, Size, UnableHereError
from tests.chaos.sabotage import SABOTAGES, STOPPED_BY_THE_LEDGER_ALONE, Sabotage, sabotaged


def run(size: Size, folder: Path) -> Report:
    """Take out all of them, or in the short form those that are quick."""
    figures: dict[str, float | int | str] = {}
    findings: list[str] = []
    chosen = {name: each for name, each in SABOTAGES.items() if each.quick or size is Size.FULL}
    for number, (name, sabotage) in enumerate(chosen.items()):
        place = folder / str(number)
        place.mkdir()
        try:
            report = broken(sabotage, place)
        except UnableHereError as why:
            figures[name] = f"not tried: {why}"
            continue
        figures[name] = "found" if found(sabotage, report) else "NOT FOUND"
        if not found(sabotage, report):
            findings.append(f"{name}: {sabotage.scenario} found {report.findings or 'nothing'}")
    if size is Size.FULL:
        (folder / "fences").mkdir()
        findings += broken(STOPPED_BY_THE_LEDGER_ALONE, folder / "fences").findings
    return Report("guards_removed", figures, tuple(findings))


def broken(sabotage: Sabotage, folder: Path) -> Report:
    """The short form of its scenario, without the guard."""
    scenario: Any = importlib.import_module(f"tests.chaos.scenarios.{sabotage.scenario}")
    options: dict[str, Any] = {"redis_options": sabotage.redis_options} if sabotage.redis_options else {}
    (folder / "run").mkdir()
    source = sabotaged(folder / "services", *sabotage.cuts)
    return scenario.run(Size.SHORT, folder / "run", source=source, **options)


def found(sabotage: Sabotage, report: Report) -> bool:
    """Whether the run broke as it should."""
    return any(finding.startswith(sabotage.findings) for finding in report.findings)
