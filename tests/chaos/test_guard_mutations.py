"""For each guard: a scenario that holds with it is found to be broken without it, and for the right reason.

Here are the quick ones; `make chaos ARGS=guards_removed` tries all of them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.guard_mutations import MUTATIONS, STOPPED_BY_THE_LEDGER_ALONE, WATCHED, mutated_sources
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


@promise("a checker of every call finds out what must not be, and breaks when a guard is taken out")
@pytest.mark.parametrize("name", WATCHED)
def test_without_the_guard_its_test_fails(name: str, tmp_path: Path) -> None:
    source = mutated_sources(tmp_path / "services", WATCHED[name].cut)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", WATCHED[name].test],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout[-5_000:]


@smoke
def test_every_guard_is_where_its_mutation_expects_it(tmp_path: Path) -> None:
    watched = [[each.cut] for each in WATCHED.values()]
    mutated = [each.cuts for each in (*MUTATIONS.values(), STOPPED_BY_THE_LEDGER_ALONE)]
    for number, cuts in enumerate([*watched, *mutated]):
        mutated_sources(tmp_path / str(number), *cuts)
