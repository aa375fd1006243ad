"""For each guard: without it a scenario that holds otherwise is found to be broken, and for the right reason.

Here are the quick ones; `make chaos ARGS=guards_removed` tries them all.
"""

from pathlib import Path

import pytest

from tests.chaos.report import UnableHereError
from tests.chaos.sabotage import SABOTAGES, STOPPED_BY_THE_LEDGER_ALONE, sabotaged
from tests.chaos.scenarios.guards_removed import broken, found

QUICK = [name for name, sabotage in SABOTAGES.items() if sabotage.quick]


@pytest.mark.parametrize("name", QUICK)
def test_without_the_guard_the_run_fails(name: str, tmp_path: Path) -> None:
    try:
        report = broken(SABOTAGES[name], tmp_path)
    except UnableHereError as why:
        pytest.skip(str(why))
    assert found(SABOTAGES[name], report), report


@pytest.mark.parametrize("name", SABOTAGES)
def test_every_guard_is_still_where_it_is_taken_out(name: str, tmp_path: Path) -> None:
    sabotaged(tmp_path, *SABOTAGES[name].cuts)


def test_so_are_the_outer_guards(tmp_path: Path) -> None:
    sabotaged(tmp_path, *STOPPED_BY_THE_LEDGER_ALONE.cuts)
