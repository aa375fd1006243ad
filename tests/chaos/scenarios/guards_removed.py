"""Each guard is taken out in turn: the scenario that holds with it must break without it."""

import importlib
from pathlib import Path
from typing import Any

from tests.chaos.guard_mutations import MUTATIONS, STOPPED_BY_THE_LEDGER_ALONE, Mutation, mutated_sources
from tests.chaos.report import Report, Size, UnableHereError


def run(size: Size, folder: Path) -> Report:
    """Take out all of them, or in the short form those that are quick."""
    figures: dict[str, float | int | str] = {}
    findings: list[str] = []
    chosen = {name: each for name, each in MUTATIONS.items() if each.quick or size is Size.FULL}
    for number, (name, mutation) in enumerate(chosen.items()):
        place = folder / str(number)
        place.mkdir()
        try:
            report = broken(mutation, place)
        except UnableHereError as why:
            figures[name] = f"not tried: {why}"
            continue
        figures[name] = "found" if found(mutation, report) else "NOT FOUND"
        if not found(mutation, report):
            findings.append(f"{name}: {mutation.scenario} found {report.findings or 'nothing'}")
    if size is Size.FULL:
        (folder / "fences").mkdir()
        findings += broken(STOPPED_BY_THE_LEDGER_ALONE, folder / "fences").findings
    return Report("guards_removed", figures, tuple(findings))


def broken(mutation: Mutation, folder: Path) -> Report:
    """The short form of its scenario, without the guard."""
    scenario: Any = importlib.import_module(f"tests.chaos.scenarios.{mutation.scenario}")
    options: dict[str, Any] = {"redis_options": mutation.redis_options} if mutation.redis_options else {}
    (folder / "run").mkdir()
    source = mutated_sources(folder / "services", *mutation.cuts)
    return scenario.run(Size.SHORT, folder / "run", source=source, **options)


def found(mutation: Mutation, report: Report) -> bool:
    """Whether the run broke as it should."""
    return any(finding.startswith(mutation.findings) for finding in report.findings)
