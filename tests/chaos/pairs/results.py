"""The results of pairs: a line for each instance, kept from run to run, and the table that is made of them."""

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from tests.chaos.pairs.instance import Instance, Pair
from tests.chaos.pairs.strikes import Fault
from tests.chaos.pairs.verdict import DIFFERENT, DOUBLE, UNTRUE, WITHOUT_END
from tests.support.processes import ROOT
from tests.support.store import Kind

FEW, MANY = 10, 50
WORST = frozenset(
    {
        frozenset({Fault.ENGINE, Fault.FLUSH}),
        frozenset({Fault.WORKER, Fault.RESTART}),
        frozenset({Fault.WORKER, Fault.FAILOVER}),
        frozenset({Fault.ENGINE, Fault.FAILOVER}),
    }
)
"""Of these MANY instances of each order must count, of the others FEW."""


def pairs_on(store: Kind) -> list[Pair]:
    """All ordered pairs that this store can have."""
    faults = [fault for fault in Fault if fault is not Fault.POSTGRES or store == "postgres"]
    return [Pair(*pair) for pair in permutations(faults, 2)]


def wanted(pair: Pair) -> int:
    """How many instances of this pair must count."""
    return MANY if frozenset({pair.first, pair.second}) in WORST else FEW


def product() -> str:
    """The commit that last changed the services; with `+` when files of theirs differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return git("log", "-1", "--format=%h", "--", "services") + "+" * bool(git("status", "--porcelain", "services"))


@dataclass
class Sums:
    """What came of one pair so far."""

    counted: int = 0
    not_counted: int = 0
    open: int = 0
    unknown: int = 0
    doubles: int = 0
    without_end: int = 0
    told_differently: int = 0
    untrue: int = 0
    seconds: float = 0.0

    def add(self, row: Mapping[str, Any]) -> None:
        """Take one instance. Violations of one that does not count are violations all the same."""
        found = {kind: len(each) for kind, each in row["violations"].items()}
        self.doubles += found.get(DOUBLE, 0)
        self.without_end += found.get(WITHOUT_END, 0)
        self.told_differently += found.get(DIFFERENT, 0)
        self.untrue += found.get(UNTRUE, 0)
        self.seconds += row["seconds"]
        if row["counts"]:
            self.counted += 1
            self.open += row["open"]
            self.unknown += row["unknown"]
        else:
            self.not_counted += 1

    @property
    def violations(self) -> int:
        """How many things did not hold."""
        return self.doubles + self.without_end + self.told_differently + self.untrue


class Results:
    """The instances of one store, of one commit of the services; those of others stay in the file, apart."""

    def __init__(self, folder: Path, store: Kind, commit: str) -> None:
        self.store: Kind = store
        self.commit = commit
        self._file = folder / f"fault_pairs-{store}.jsonl"
        self.sums: dict[str, Sums] = {}
        for row in self._rows():
            if row["commit"] == commit:
                self.sums.setdefault(row["pair"], Sums()).add(row)

    def add(self, instance: Instance) -> None:
        """Keep one more."""
        row = {"commit": self.commit, "counts": instance.counts, **asdict(instance)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.sums.setdefault(instance.pair, Sums()).add(row)

    def of(self, pair: Pair) -> Sums:
        """What came of this pair so far."""
        return self.sums.get(str(pair), Sums())

    def table(self) -> Iterator[str]:
        """The lines of the table, in markdown."""
        head = ("first, second", "counted", "not counted", "open calls", "`unknown`", "doubles", "without end")
        head += ("told differently", "untrue", "seconds each")
        yield _line(head)
        yield "|---" * len(head) + "|"
        total = Sums()
        for pair in map(str, pairs_on(self.store)):
            if sums := self.sums.get(pair):
                yield _line([pair.replace("+", ", "), *_cells(sums)])
                for name, value in asdict(sums).items():
                    setattr(total, name, getattr(total, name) + value)
        yield _line(["all", *_cells(total)])

    def _rows(self) -> Iterator[dict[str, Any]]:
        if self._file.exists():
            yield from map(json.loads, self._file.read_text().splitlines())


def _cells(sums: Sums) -> Sequence[object]:
    instances = sums.counted + sums.not_counted
    numbers = [sums.counted, sums.not_counted, sums.open, sums.unknown, sums.doubles, sums.without_end]
    return [*numbers, sums.told_differently, sums.untrue, f"{sums.seconds / max(1, instances):.0f}"]


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
