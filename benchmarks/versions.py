"""What a plain tool call costs in this version and in another one: the same bursts, in turn, on the same machine.

    git worktree add ../before v1.2.3 && make -C ../before sync
    python -m benchmarks.versions ../before [--rounds 10] [--burst 1000]

Each version runs its own services (`benchmarks.pair`) in its own environment, both at the same time, and is idle while
the other one is measured. All of them are started again for each round, because a process costs up to 5 % more or less
than the next one of the same version. Processor time is per call with 64 in flight. The last column is the median of
the ratios of neighbouring bursts, which other work on the machine affects alike: it is the one to compare.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import uvloop

from benchmarks.arguments import at_least
from benchmarks.pair import HTTP, IN_WORKER, STDIO, engine, processes
from callstream_runtime.garbage import tune_gc

IN_FLIGHT = 64
CONCURRENCY = 32
WAYS = {IN_WORKER: 2, HTTP: 1, STDIO: 1}
"""The servers that are called, and how many bursts of calls make one: a call inside the worker is short."""
PARTS = ("engine", "worker", "both")
SERVE = "serve"
ANSWER = "answer: "


class Version:
    """One version: a process that makes a burst of calls for each line it reads."""

    def __init__(self, root: Path) -> None:
        # The text of this module runs in the other version, which may not have it.
        command = [root / ".venv/bin/python", "-c", Path(__file__).read_text(), SERVE]
        self._process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def burst(self, server: str, calls: int) -> dict[str, float]:
        """Make so many calls. Returns microseconds of processor time per call, of the engine and of the worker."""
        assert self._process.stdin
        print(server, calls, file=self._process.stdin, flush=True)
        return self._answer()

    def wait_ready(self) -> None:
        """Wait until its services run."""
        self._answer()

    def close(self) -> None:
        """End it and its services."""
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        raise RuntimeError(f"a version ended with {self._process.wait()}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path, help="a checkout of the other version, with its environment (make sync)")
    parser.add_argument("--rounds", type=at_least(2), default=10)
    parser.add_argument("--burst", type=at_least(IN_FLIGHT), default=1000, help="calls")
    options = parser.parse_args()
    measured: dict[tuple[str, str], list[list[float]]] = defaultdict(lambda: [[], []])
    for number in range(options.rounds):
        with ExitStack() as running:
            versions = [running.enter_context(closing(Version(root))) for root in (options.before, Path.cwd())]
            for version in versions:
                version.wait_ready()
                for server in WAYS:
                    version.burst(server, IN_FLIGHT)
            for server, bursts in WAYS.items():
                for which in (0, 1) if number % 2 else (1, 0):
                    used = versions[which].burst(server, bursts * options.burst)
                    for part in PARTS:
                        measured[server, part][which].append(used[part])
    _print(measured)


def _print(measured: dict[tuple[str, str], list[list[float]]]) -> None:
    print(f"{'µs per call':<28}{'before':>8}{'now':>8}{'now ÷ before':>16}")
    for (server, part), (before, now) in measured.items():
        ratio = statistics.median(y / x for x, y in zip(before, now, strict=True))
        print(f"{f'{server}, {part}':<28}{statistics.median(before):>8.0f}{statistics.median(now):>8.0f}{ratio:>16.3f}")


async def serve() -> None:
    """Run the services of the version in the current folder, and make the bursts that are asked for."""
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as name, processes(Path(name), workers=1, concurrency=CONCURRENCY) as started:
        async with engine(started.redis_url, Path(name, "engine.db")) as mine:
            await mine.prepare(IN_FLIGHT)
            both = {"engine": psutil.Process(), "worker": psutil.Process(started.pids["worker 1"])}
            _answer({})
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                server, calls = line.split()
                left, before = iter(range(int(calls))), _microseconds(both)

                async def call(left: Any = left, server: str = server) -> None:
                    for number in left:
                        await mine.call(f"{number}", server)

                await asyncio.gather(*(call() for _ in range(IN_FLIGHT)))
                used = {part: (now - before[part]) / int(calls) for part, now in _microseconds(both).items()}
                _answer(used | {"both": sum(used.values())})


def _microseconds(parts: dict[str, psutil.Process]) -> dict[str, float]:
    times = {name: process.cpu_times() for name, process in parts.items()}
    return {name: (each.user + each.system) * 1e6 for name, each in times.items()}


def _answer(value: dict[str, float]) -> None:
    print(f"{ANSWER}{json.dumps(value)}", flush=True)


if __name__ == "__main__":
    tune_gc()
    if sys.argv[1:] == [SERVE]:
        uvloop.run(serve())
    else:
        main()
