"""Two faults within seconds of each other, in both orders, while calls are open; the second one within 15 s.

The unit is the pair that hits open calls: at both faults some were open, and an engine or worker that was struck had
some of its own. What hits none is tried again and does not count. It may cost an `unknown`; never a double, a call
without an end, `succeeded` without an effect, or two engines that say different things.

The full form takes hours, is done pair by pair, and goes on where it was stopped.
"""

from collections.abc import Sequence
from pathlib import Path

from tests.chaos.pairs.instance import Pair
from tests.chaos.pairs.lanes import Lanes, Plan
from tests.chaos.pairs.results import Results, pairs_on, product, wanted
from tests.chaos.pairs.strikes import Fault
from tests.chaos.report import Report, Size
from tests.support.store import Kind

STORES: Sequence[Kind] = ("postgres", "sqlite")
ARTIFACTS = Path("test-artifacts/chaos")
PARALLEL = 6
WORST = [
    Pair(Fault.ENGINE, Fault.FLUSH),
    Pair(Fault.WORKER, Fault.RESTART),
    Pair(Fault.WORKER, Fault.FAILOVER),
    Pair(Fault.ENGINE, Fault.FAILOVER),
]


def run(size: Size, folder: Path, *, store: Kind = "postgres", source: str = "") -> Report:
    if size is Size.SHORT:
        plan = Plan(dict.fromkeys(WORST, 1), parallel=2, quick=True, second_seconds=4.0, source=source)
        results, artifacts = Results(folder, store, "short"), folder / "found"
    else:
        plan = Plan({pair: wanted(pair) for pair in pairs_on(store)}, PARALLEL, source=source)
        results, artifacts = Results(ARTIFACTS, store, product()), ARTIFACTS / "fault_pairs"
    lanes = Lanes(plan, results, folder, artifacts)
    processor = lanes.run()
    findings = [*results.violations()]
    findings += (f"not enough instances count: {pair}" for pair in lanes.missing())
    findings += (f"the harness failed: {failure}" for failure in lanes.failures)
    figures: dict[str, float | int | str] = {
        "instances": lanes.instances,
        "seconds of processor time each": processor / max(1, lanes.instances),
    }
    return Report("fault_pairs", figures, tuple(findings), tuple(results.table()))
