"""`python -m tests.chaos.pairs`: two faults within seconds, pair by pair; it goes on where it was stopped.

Results are kept in test-artifacts/chaos, of each commit of the services apart. `--summary` prints them as tables.
"""

import argparse
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import get_args

from tests.chaos.pairs.lanes import Lanes, Plan, missing
from tests.chaos.pairs.results import Results, pairs_on, product, wanted
from tests.support.store import Kind

ARTIFACTS = Path("test-artifacts/chaos")


def main() -> int:
    """Exit status 1 when anything did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.pairs", description=__doc__)
    parser.add_argument("--store", choices=get_args(Kind), help="only on this one")
    parser.add_argument("--pair", action="append", metavar="engine+flush", help="only this one; may be repeated")
    parser.add_argument("--count", type=int, help="so many that count of each pair; 50 or 10 if not given")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many seconds")
    parser.add_argument("--parallel", type=int, default=4, help="so many stacks at once")
    parser.add_argument("--commit", default=product(), help="with --summary: the results of this one")
    parser.add_argument("--summary", action="store_true", help="print what is known, and run nothing")
    options = parser.parse_args()
    stores: list[Kind] = [store for store in get_args(Kind) if options.store in (None, store)]
    until, held = time.monotonic() + options.seconds, True
    for store in stores:
        results = Results(ARTIFACTS, store, options.commit)
        pairs = [pair for pair in pairs_on(store) if not options.pair or str(pair) in options.pair]
        plan = Plan({pair: options.count or wanted(pair) for pair in pairs}, options.parallel, until - time.monotonic())
        if not options.summary:
            run(plan, results, store)
        print(f"\n## {store}, services at {results.commit}\n", *results.table(), sep="\n")
        if to_do := missing(plan, results):
            print(f"\nNot done yet: {'; '.join(to_do)}")
        held = held and not any(sums.violations for sums in results.sums.values())
    return 0 if held else 1


def run(plan: Plan, results: Results, store: Kind) -> None:
    """Carry out the plan; what the processes write goes to a file."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="chaos-pairs-") as folder,
        (ARTIFACTS / f"fault_pairs-{store}.log").open("w") as log,
        redirect_stdout(log),
    ):
        lanes = Lanes(plan, results, Path(folder), ARTIFACTS / "fault_pairs")
        processor = lanes.run()
    if lanes.instances:
        each, wall = processor / lanes.instances, (time.monotonic() - begun) / lanes.instances
        print(f"{store}: {lanes.instances} instances, one each {wall:.1f} s, {each:.1f} s of processor time each")


if __name__ == "__main__":
    sys.exit(main())
