"""Many stacks at once, each of which goes from one pair to the next."""

import random
import resource
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.pairs.instance import Pair, PairTrial
from tests.chaos.pairs.results import COUNTED, NOT_COUNTED, Results
from tests.chaos.pairs.stack import PairStack, pair_stack

MOST_TRIES = 5
"""After so many times as many instances as are wanted a pair is given up: it seems to hit nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """So many of each pair, on so many stacks at once; `quick` is with short leases."""

    wanted: dict[Pair, int]
    parallel: int
    quick: bool = False
    source: str = ""
    second_seconds: float = 15.0
    """Within so many seconds of the first fault the second one strikes."""


class Lanes:
    """Carries out a plan. `failures` are errors of the harness."""

    def __init__(self, plan: Plan, results: Results, folder: Path, artifacts: Path) -> None:
        self._plan, self._results = plan, results
        self._folder, self._artifacts = folder, artifacts
        self._lock, self._starting, self._over = threading.Lock(), threading.Lock(), threading.Event()
        self._under_way: Counter[Pair] = Counter()
        self.instances = 0
        self.failures: list[str] = []

    def run(self) -> float:
        """Do all of it. The seconds of processor time that it has taken, those of the harness included.

        SIGINT and SIGTERM begin nothing more: what has begun ends within a minute or so, and its processes with it.
        """
        before = _processor_seconds()
        with _on_signals(self._over.set), ThreadPoolExecutor(self._plan.parallel) as pool:
            list(pool.map(self._lane, range(self._plan.parallel)))
        return _processor_seconds() - before

    def missing(self) -> Sequence[str]:
        """The pairs of which not enough instances count yet."""
        counted = {pair: self._results.of(pair)[COUNTED] for pair in self._plan.wanted}
        return [
            f"{pair}: {counted[pair]} of {count}" for pair, count in self._plan.wanted.items() if counted[pair] < count
        ]

    def _lane(self, _number: int) -> None:
        while self._most_wanted() and len(self.failures) <= 3 * self._plan.parallel:
            try:
                with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                    self._on_one_stack(Path(folder))
            except Exception:  # noqa: BLE001 -- whatever it was: the other lanes go on, and this one with a new stack
                self.failures.append(traceback.format_exc())
                print(f"the harness failed: {self.failures[-1]}", file=sys.stderr, flush=True)

    def _on_one_stack(self, folder: Path) -> None:
        plan = self._plan
        with closing(pair_stack(folder, self._results.store, quick=plan.quick, source=plan.source)) as stack:
            with self._starting:  # it takes ten seconds of computing
                stack.start()
            self._pairs_on(stack)

    def _pairs_on(self, stack: PairStack) -> None:
        trial = PairTrial(stack, self._artifacts, self._plan.second_seconds)
        while not trial.broken and (pair := self._take()):
            try:
                instance = trial.run(pair, f"{random.randrange(16**8):08x}")
                with self._lock:
                    self._results.add(instance)
                    self.instances += 1
            finally:
                with self._lock:
                    self._under_way[pair] -= 1
            done = f"{self._results.of(pair)[COUNTED]} of {self._plan.wanted[pair]}"
            print(f"{instance}; {done}", file=sys.stderr, flush=True)

    def _take(self) -> Pair | None:
        with self._lock:
            if pair := self._most_wanted():
                self._under_way[pair] += 1
            return pair

    def _most_wanted(self) -> Pair | None:
        """A pair of which the smallest share is done; None when all is done, or the time is over."""
        shares = {
            pair: (self._results.of(pair)[COUNTED] + self._under_way[pair]) / count
            for pair, count in self._plan.wanted.items()
            if self._results.of(pair)[NOT_COUNTED] < MOST_TRIES * count
        }
        least = min(shares.values(), default=1)
        if least >= 1 or self._over.is_set():
            return None
        return random.choice([pair for pair, share in shares.items() if share == least])


@contextmanager
def _on_signals(do: Callable[[], None]) -> Generator[None]:
    """SIGINT and SIGTERM do this for as long as the block."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def handle(_number: int, _frame: object) -> None:
        do()

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _processor_seconds() -> float:
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)
