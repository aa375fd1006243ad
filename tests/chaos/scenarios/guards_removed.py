"""Each guard is taken out in turn: the scenario that holds with it must break without it.

What some guards stop needs two things at once, which a short run may miss: it is tried again then.
"""

import importlib
from pathlib import Path
from typing import Any

from tests.chaos.guard_mutations import MUTATIONS, STOPPED_BY_THE_LEDGER_ALONE, Mutation, mutated_sources
from tests.chaos.report import Report, Size, UnableHereError

TRIES = 3
"""A step of the clock takes calls from living workers in four short runs of five, if nothing stops it."""


def run(size: Size, folder: Path) -> Report:
    """Take out all of them, or in the short form those that are quick."""
    figures: dict[str, float | int | str] = {}
    findings: list[str] = []
    chosen = {name: each for name, each in MUTATIONS.items() if each.quick or size is Size.FULL}
    for number, (name, mutation) in enumerate(chosen.items()):
        try:
            figures[name], missed = _tried(mutation, folder / str(number))
        except UnableHereError as why:
            figures[name] = f"not tried: {why}"
            continue
        findings += (f"{name}: {mutation.scenario} found {report.findings or 'nothing'}" for report in missed)
    if size is Size.FULL:
        (folder / "fences").mkdir()
        findings += broken(STOPPED_BY_THE_LEDGER_ALONE, folder / "fences").findings
    return Report("guards_removed", figures, tuple(findings))


def _tried(mutation: Mutation, folder: Path) -> tuple[str, list[Report]]:
    """In which run it was found; without one, what the runs have found instead."""
    missed: list[Report] = []
    for number in range(1, TRIES + 1):
        (place := folder / str(number)).mkdir(parents=True)
        report = broken(mutation, place)
        if found(mutation, report):
            return f"found in run {number}", []
        missed.append(report)
    return "NOT FOUND", missed


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
