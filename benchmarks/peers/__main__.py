"""The round trip of one call through Callstream beside other task queues on Redis. The task returns its argument.

    make bench-peers                               or, with options, make bench-peers ARGS="--rounds 3"

Callstream runs a tool inside its worker (DEVELOPMENT_ECHO), so that all measure the queue alone. Peers promise less:
no fence, no commit of the caller, most no lease. Each is set up as its documentation recommends, which `apps/` cites,
or with `--tuned` for a fast answer: results are polled every 1 to 5 ms, and each caller runs on uvloop. Each peer has
an environment of its own that uv makes, and all use the same server of the Redis protocol with an append-only file. The
floor is a message to another process and back over two Redis streams, without any promise.

Each round measures every way once; the table shows medians of the rounds. Idle workers of the others stay running.
Where results are polled rarely, a round ends before it has made all of its calls.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import uvloop

from benchmarks.arguments import at_least
from benchmarks.floor import floor
from benchmarks.machine import describe
from benchmarks.pair import IN_WORKER, engine, processes
from benchmarks.round_trip import block
from callstream_runtime.garbage import tune_gc
from tests.support.processes import ROOT

APPS = Path(__file__).with_name("apps")
ROUND_SECONDS = 5
"""After so long a peer begins no more calls of a round."""
Round = Callable[[int, int], Awaitable[tuple[Sequence[float], float]]]
"""Runs that many calls with so many in flight. Returns the seconds of each call and of all."""


@dataclass(frozen=True)
class Peer:
    """A task queue: the packages of its environment, and the command of its worker there.

    For `--tuned`, further packages and further options of the command.
    """

    packages: tuple[str, ...]
    module: str
    worker: tuple[str, ...]
    tuned_packages: tuple[str, ...] = ()
    tuned_options: tuple[str, ...] = ()


PEERS = {
    "celery": Peer(
        ("celery[redis]==5.7.0",), "celery_app", ("celery", "-A", "celery_app", "worker", "--loglevel", "ERROR")
    ),
    "taskiq": Peer(
        ("taskiq-redis==1.2.4", "uvloop"),
        "taskiq_app",
        ("taskiq", "worker", "taskiq_app:broker"),
        tuned_options=("--workers", "1"),
    ),
    "arq": Peer(("arq==0.28.0",), "arq_app", ("arq", "arq_app.WorkerSettings"), tuned_packages=("uvloop",)),
    "faststream": Peer(
        ("faststream[redis,cli]==0.7.8", "uvloop"), "faststream_app", ("faststream", "run", "faststream_app:app")
    ),
    "pydocket": Peer(
        ("pydocket==0.26.0",),
        "docket_app",
        ("docket", "worker", "--docket", "bench", "--tasks", "docket_app:tasks", "--concurrency", "50"),
        tuned_packages=("uvloop",),
        tuned_options=("--concurrency", "64"),
    ),
}


class Client:
    """The requesting process of a peer, and its worker."""

    def __init__(self, peer: Peer, redis_url: str, stack: ExitStack, *, tuned: bool) -> None:
        packages = peer.packages + (peer.tuned_packages if tuned else ())
        command = peer.worker + (peer.tuned_options if tuned else ())
        given = [part for package in packages for part in ("--with", package)]
        run = [os.environ.get("UV", "uv"), "run", "--quiet", "--no-project", "--python", "3.11", *given]
        environment = {**os.environ, "REDIS_URL": redis_url, "DOCKET_URL": redis_url, "PYTHONPATH": str(APPS)}
        environment.pop("VIRTUAL_ENV", None)
        if tuned:
            environment["TUNED"] = "1"
        worker = subprocess.Popen(
            [*run, *command], cwd=APPS, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        stack.callback(_end, worker)
        self._client = subprocess.Popen(
            [*run, "python", "client.py", peer.module],
            cwd=APPS,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.callback(_end, self._client)

    async def round(self, calls: int, in_flight: int) -> tuple[Sequence[float], float]:
        return await asyncio.to_thread(self._ask, f"{calls} {in_flight} {ROUND_SECONDS}\n")

    def _ask(self, line: str) -> tuple[Sequence[float], float]:
        assert self._client.stdin
        assert self._client.stdout
        self._client.stdin.write(line)
        self._client.stdin.flush()
        times, seconds = json.loads(self._client.stdout.readline())
        return times, seconds


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End it and the processes that uv and the worker have started."""
    for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        each.kill()
    process.wait()


async def measure(options: argparse.Namespace, folder: Path) -> None:
    tune_gc()  # as an engine's own process does
    async with AsyncExitStack() as stack:
        running = stack.enter_context(processes(folder, workers=1, concurrency=options.concurrency))
        mine = await stack.enter_async_context(engine(running.redis_url, folder / "engine.sqlite3"))
        await mine.prepare(options.in_flight)
        raw = await stack.enter_async_context(floor(running.redis_url))
        ways: dict[str, Round] = {"Callstream": partial(block, partial(mine.call, server=IN_WORKER))}
        for name in options.peers:
            client = Client(PEERS[name], running.redis_url, stack.enter_context(ExitStack()), tuned=options.tuned)
            ways[name] = client.round
        ways["Redis streams alone"] = partial(block, raw.call)
        print(
            f"{describe(folder, running.redis_url)}; peers {'tuned' if options.tuned else 'as documented'}", flush=True
        )
        for way in ways.values():
            await way(200, options.in_flight)
        alone: dict[str, list[float]] = {name: [] for name in ways}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in ways.items():
                times, _ = await way(options.calls, 1)
                alone[name].append(statistics.median(times) * 1000)
                times, seconds = await way(options.burst, options.in_flight)
                rates[name].append(len(times) / seconds)
    print(f"\n{'':22}{'p50 ms alone':>14}{f'calls/s, {options.in_flight} in flight':>26}{'Callstream ÷':>22}")
    own_p50, own_rate = statistics.median(alone["Callstream"]), statistics.median(rates["Callstream"])
    for name in ways:
        p50, rate = statistics.median(alone[name]), statistics.median(rates[name])
        print(f"{name:22}{p50:>14.2f}{rate:>26.0f}{f'{own_p50 / p50:.2g}, {own_rate / rate:.2g}':>22}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=at_least(1), default=10, help="how often everything is measured, in turn")
    parser.add_argument("--calls", type=at_least(1), default=50, help="calls one at a time, per round")
    parser.add_argument("--burst", type=at_least(1), default=512, help="calls with many in flight, per round")
    parser.add_argument("--in-flight", type=at_least(1), default=64, help="how many that is")
    parser.add_argument("--concurrency", type=at_least(1), default=64, help="slots of Callstream's worker")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="which ones")
    parser.add_argument("--tuned", action="store_true", help="peers tuned for a fast answer")
    options = parser.parse_args()
    data = ROOT / ".data"  # on a disk: /tmp may be in memory, where a synced commit costs nothing
    data.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=data) as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()
