"""For each guard: a scenario that holds with it is found to be broken without it, and for the right reason.

Here are the quick ones; `make chaos ARGS=guards_removed` tries all of them.
"""

from pathlib import Path

import pytest

from tests.chaos.guard_mutations import MUTATIONS, STOPPED_BY_THE_LEDGER_ALONE
from tests.chaos.report import UnableHereError
from tests.chaos.scenarios.guards_removed import broken, found
from tests.marks import exhaustive, promise, smoke
from tests.support.processes import ROOT

pytestmark = exhaustive("scenarios that are run again, each without one guard")


@promise("a checker of every call finds out what must not be, and breaks when a guard is taken out")
@pytest.mark.parametrize("name", [name for name, mutation in MUTATIONS.items() if mutation.quick])
def test_without_the_guard_the_run_fails(name: str, tmp_path: Path) -> None:
    try:
        report = broken(MUTATIONS[name], tmp_path)
    except UnableHereError as why:
        pytest.skip(str(why))
    assert found(MUTATIONS[name], report), report


@smoke
def test_every_guard_is_where_its_mutation_expects_it() -> None:
    cuts = [cut for each in (*MUTATIONS.values(), STOPPED_BY_THE_LEDGER_ALONE) for cut in each.cuts]
    assert [cut for cut in cuts if (ROOT / "services" / cut.file).read_text().count(cut.old) != 1] == []
