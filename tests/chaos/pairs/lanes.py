"""Many stacks at once, each of which goes from one pair to the next."""

import random
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.pairs.instance import Pair, Trial
from tests.chaos.pairs.results import Results
from tests.chaos.pairs.stack import running_pair_stack

SECOND_SECONDS = 15.0
MOST_TRIES = 5
"""After so many times as many instances as are wanted a pair is given up: it seems to hit nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done: so many of each pair, on so many stacks at once, for so many seconds at most."""

    wanted: dict[Pair, int]
    parallel: int = 4
    seconds: float = float("inf")
    quick: bool = False
    """With short leases; the second fault comes sooner."""
    source: str = ""
    second_seconds: float = SECOND_SECONDS
    """Within so many seconds of the first fault the second one strikes."""


class Lanes:
    """Carries out a plan. `failures` are errors of the harness."""

    def __init__(self, plan: Plan, results: Results, folder: Path, artifacts: Path) -> None:
        self._plan, self._results = plan, results
        self._folder, self._artifacts = folder, artifacts
        self._until = time.monotonic() + plan.seconds
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._under_way: Counter[Pair] = Counter()
        self.instances = 0
        self.failures: list[str] = []

    def run(self) -> float:
        """Do all of it. The seconds of processor time that it has taken, those of the harness included."""
        before = _processor_seconds()
        with _on_signals(self.stop), ThreadPoolExecutor(self._plan.parallel, thread_name_prefix="lane") as pool:
            for _ in pool.map(self._lane, range(self._plan.parallel)):
                pass
        return _processor_seconds() - before

    def stop(self) -> None:
        """Begin nothing more: what has begun ends within a minute or so, and its processes with it."""
        self._until = 0.0

    def _lane(self, _number: int) -> None:
        while pair := self._next():
            self._put_back(pair)
            try:
                self._on_one_stack()
            except Exception:  # noqa: BLE001 -- whatever it was: the other lanes go on, and this one with a new stack
                failure = traceback.format_exc()
                self.failures.append(failure)
                print(f"the harness failed: {failure.splitlines()[-1]}", file=sys.stderr, flush=True)
                print(failure, flush=True)
                if len(self.failures) > 3 * self._plan.parallel:
                    return

    def _on_one_stack(self) -> None:
        plan = self._plan
        with tempfile.TemporaryDirectory(dir=self._folder) as folder, ExitStack() as running:
            with self._starting:  # a stack takes ten seconds of computing to start
                stack = running.enter_context(
                    running_pair_stack(Path(folder), self._results.store, quick=plan.quick, source=plan.source)
                )
            trial = Trial(stack, self._artifacts, plan.second_seconds)
            while not trial.broken and (pair := self._next()):
                try:
                    instance = trial.run(pair, f"{random.randrange(16**8):08x}")
                    with self._lock:
                        self._results.add(instance)
                        self.instances += 1
                finally:
                    self._put_back(pair)
                sums = self._results.of(pair)
                found = instance.violations or "held" if instance.counts else "hit nothing"
                print(
                    f"{instance.store} {pair} seed {instance.seed}: gap {instance.gap_seconds:.2f} s,"
                    f" {instance.unknown} of {instance.open} unknown, {found};"
                    f" {sums.counted} of {plan.wanted[pair]} {' '.join(instance.notes)}",
                    file=sys.stderr,
                    flush=True,
                )

    def _next(self) -> Pair | None:
        """The pair of which the smallest share is done; None when all is done, or the time is over."""
        with self._lock:
            if time.monotonic() > self._until:
                return None
            shares = {
                pair: (self._results.of(pair).counted + self._under_way[pair]) / count
                for pair, count in self._plan.wanted.items()
                if self._results.of(pair).not_counted < MOST_TRIES * count
            }
            least = [pair for pair, share in shares.items() if share == min(shares.values()) and share < 1]
            if not least:
                return None
            pair = random.choice(least)
            self._under_way[pair] += 1
            return pair

    def _put_back(self, pair: Pair) -> None:
        with self._lock:
            self._under_way[pair] -= 1


def missing(plan: Plan, results: Results) -> Sequence[str]:
    """The pairs of which not enough instances count yet."""
    return [
        f"{pair}: {results.of(pair).counted} of {count}"
        for pair, count in plan.wanted.items()
        if results.of(pair).counted < count
    ]


@contextmanager
def _on_signals(do: Callable[[], None]) -> Generator[None]:
    """SIGINT and SIGTERM do this for as long as the block."""

    def handle(_number: int, _frame: object) -> None:
        do()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _processor_seconds() -> float:
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)
