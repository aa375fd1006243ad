"""The results of pairs: a line for each instance, kept from run to run, and the table that is made of them."""

import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import permutations
from pathlib import Path
from typing import Any

from tests.chaos.pairs.instance import Instance, Pair
from tests.chaos.pairs.strikes import Fault
from tests.chaos.pairs.verdict import KINDS
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
COUNTED, NOT_COUNTED, OPEN, UNKNOWN, SECONDS = "counted", "not counted", "open calls", "`unknown`", "seconds"
COLUMNS = (COUNTED, NOT_COUNTED, OPEN, UNKNOWN, *KINDS, SECONDS)


def pairs_on(store: Kind) -> list[Pair]:
    """All ordered pairs that this store can have."""
    faults = [fault for fault in Fault if fault is not Fault.POSTGRES or store == "postgres"]
    return [Pair(*pair) for pair in permutations(faults, 2)]


def wanted(pair: Pair) -> int:
    return MANY if frozenset({pair.first, pair.second}) in WORST else FEW


def product() -> str:
    """The commit that last changed the services; with `+` when files of theirs differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return git("log", "-1", "--format=%h", "--", "services") + "+" * bool(git("status", "--porcelain", "services"))


class Results:
    """The instances of one store, of one commit of the services; those of others stay in the file, apart."""

    def __init__(self, folder: Path, store: Kind, commit: str) -> None:
        self.store: Kind = store
        self._commit = commit
        self._file = folder / f"fault_pairs-{store}.jsonl"
        self.sums: dict[str, Counter[str]] = defaultdict(Counter)
        """What came of each pair so far, by COLUMNS."""
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            row = json.loads(line)
            if row["commit"] == commit:
                self._take(row)

    def add(self, instance: Instance) -> None:
        row = {"commit": self._commit, "counts": instance.counts, **asdict(instance)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._take(row)

    def of(self, pair: Pair) -> Counter[str]:
        return self.sums[str(pair)]

    def violations(self) -> Iterator[str]:
        """What did not hold, in a sentence for each pair."""
        for pair, sums in self.sums.items():
            if found := {kind: sums[kind] for kind in KINDS if sums[kind]}:
                yield f"{pair}: {found}"

    def table(self) -> Iterator[str]:
        yield _line(("first, second", *COLUMNS))
        yield "|---" * (len(COLUMNS) + 1) + "|"
        for pair in map(str, pairs_on(self.store)):
            if pair in self.sums:
                yield _line((pair.replace("+", ", "), *(self.sums[pair][column] for column in COLUMNS)))
        total = sum(self.sums.values(), Counter[str]())
        yield _line(("all", *(total[column] for column in COLUMNS)))

    def _take(self, row: Mapping[str, Any]) -> None:
        """Violations of one that does not count are violations all the same."""
        sums = self.sums[row["pair"]]
        sums.update({kind: len(each) for kind, each in row["violations"].items()})
        sums[SECONDS] += round(row["seconds"])
        sums.update({COUNTED: 1, OPEN: row["open"], UNKNOWN: row["unknown"]} if row["counts"] else {NOT_COUNTED: 1})


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
