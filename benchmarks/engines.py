"""Calls per second by the number of engines that share a PostgreSQL, beside what a simple model predicts.

    python -m benchmarks.engines --help

Each engine is a process with the engine's part of a call (`benchmarks.pair`); one worker runs the tool inside itself
(DEVELOPMENT_ECHO). The model (docs/performance.md) is

    calls/s = min(engines / seconds of an engine per call, cores / processor seconds per call)

fed by the row of one engine. The processor time of an engine is its own alone, so an engine on a core of its own makes
the first term; on a machine whose cores are shared by all processes the second one holds.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import psutil
import uvloop

from benchmarks.arguments import at_least
from benchmarks.machine import describe
from benchmarks.pair import IN_WORKER, engine, processes
from benchmarks.round_trip import block
from callstream_runtime.garbage import tune_gc
from tests.support.postgres import PostgresServer
from tests.support.processes import ROOT

DATABASE = "bench"
WARM_UP = 200


class Row(NamedTuple):
    """What was measured with so many engines: calls per second, and processor seconds per call by part."""

    engines: int
    rate: float
    engine: float
    postgres: float
    redis: float
    worker: float

    @property
    def whole(self) -> float:
        """Processor seconds per call of all parts."""
        return self.engine + self.postgres + self.redis + self.worker


class EngineProcess:
    """An engine in a process of its own, which makes calls on demand."""

    def __init__(self, redis_url: str, database_url: str, in_flight: int, stack: ExitStack) -> None:
        command = [sys.executable, "-m", "benchmarks.engines", "--run", redis_url, database_url, str(in_flight)]
        self._process = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        stack.callback(self._end)
        self.pid = self._process.pid

    def call(self, calls: int) -> float:
        """Make that many calls. Returns the seconds."""
        assert self._process.stdin
        assert self._process.stdout
        print(calls, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def _end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


async def run_engine(redis_url: str, database_url: str, in_flight: int) -> None:
    """Be an engine: for each number on stdin make so many calls, and write the seconds to stdout."""
    tune_gc()
    async with engine(redis_url, database_url) as mine:
        await mine.prepare(in_flight)
        while line := await asyncio.to_thread(sys.stdin.readline):
            _, seconds = await block(partial(mine.call, server=IN_WORKER), int(line), in_flight)
            print(seconds, flush=True)


def measure(count: int, options: argparse.Namespace, folder: Path) -> Row:
    with ExitStack() as stack:
        running = stack.enter_context(processes(folder, workers=1, concurrency=options.slots))
        # Not in `folder`, which may be closed to the account that the server runs as.
        postgres = PostgresServer(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))))
        postgres.start()
        stack.callback(_stop, postgres)
        postgres.create_database(DATABASE)
        url = postgres.url_of(DATABASE)
        engines = [EngineProcess(running.redis_url, url, options.in_flight // count, stack) for _ in range(count)]
        group = {
            "engine": [each.pid for each in engines],
            "postgres": [postgres.process.pid],
            "redis": [running.pids["redis"]],
            "worker": [running.pids["worker 1"]],
        }
        threads = stack.enter_context(ThreadPoolExecutor(count))
        _call(engines, WARM_UP, threads)
        if count == options.engines[0]:
            print(describe(folder, running.redis_url), flush=True)
        of_each = options.calls // count
        rates: list[float] = []
        used: dict[str, float] = dict.fromkeys(group, 0.0)
        for _ in range(options.rounds):
            before = {part: _processor_seconds(pids) for part, pids in group.items()}
            rates.append(of_each * count / _call(engines, of_each, threads))
            for part, pids in group.items():
                used[part] += _processor_seconds(pids) - before[part]
        calls = options.rounds * of_each * count
        return Row(count, statistics.median(rates), *(used[part] / calls for part in group))


def _call(engines: Sequence[EngineProcess], calls: int, threads: ThreadPoolExecutor) -> float:
    """Let all engines make so many calls each. Returns the seconds of the last one."""
    return max(threads.map(EngineProcess.call, engines, [calls] * len(engines)))


def _stop(postgres: PostgresServer) -> None:
    with redirect_stdout(StringIO()):  # it prints its log
        postgres.stop()


def _processor_seconds(pids: Iterable[int]) -> float:
    """Of these processes and their children, as PostgreSQL has one for each connection."""
    family = [each for pid in pids for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]
    return sum(times.user + times.system for times in (process.cpu_times() for process in family))


def report(rows: list[Row]) -> None:
    first, cores = rows[0], psutil.cpu_count() or 1
    parts = ("engine", "postgres", "redis", "worker")
    print(f"\n{'engines':10}{'calls/s':>10}{'model':>10}{'µs per call: all':>20}" + "".join(f"{p:>12}" for p in parts))
    for row in rows:
        model = min(row.engines / first.engine, cores / first.whole)
        cells = "".join(f"{getattr(row, part) * 1e6:>12.0f}" for part in parts)
        print(f"{row.engines:<10}{row.rate:>10.0f}{model:>10.0f}{row.whole * 1e6:>20.0f}{cells}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines",
        description="Calls per second by the number of engines on one PostgreSQL.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--engines", type=at_least(1), nargs="+", default=[1, 2, 3], help="numbers of engines")
    parser.add_argument("--slots", type=at_least(1), default=64, help="slots of the worker")
    parser.add_argument("--rounds", type=at_least(1), default=10, help="how often everything is measured")
    parser.add_argument("--calls", type=at_least(1), default=1000, help="calls per round, of all engines together")
    parser.add_argument("--in-flight", type=at_least(1), default=60, help="how many of those at a time")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        redis_url, database_url, in_flight = options.run
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_engine(redis_url, database_url, int(in_flight)))
        return
    data = ROOT / ".data"
    data.mkdir(exist_ok=True)
    rows: list[Row] = []
    with suppress(KeyboardInterrupt):
        for count in options.engines:
            with tempfile.TemporaryDirectory(prefix="bench-", dir=data) as folder:
                rows.append(measure(count, options, Path(folder)))
        report(rows)


if __name__ == "__main__":
    main()
