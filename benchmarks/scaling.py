"""Calls per second by the number of workers, beside what a simple model of queues predicts.

    python -m benchmarks.scaling --help

Two tools are called through one engine: one that waits for TOOL_SECONDS, where the slots of the workers are the limit,
and one that answers at once, where the processors are. The model (docs/performance.md) is

    calls/s = min(workers x slots / (seconds of the tool + seconds of the path), cores / processor seconds per call)

The seconds of the path are measured with one call at a time, the processor seconds with one worker; the other rows are
predictions beside measurements.
"""

import argparse
import asyncio
import statistics
import tempfile
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import uvloop

from benchmarks.arguments import at_least
from benchmarks.machine import describe
from benchmarks.pair import HTTP, engine, processes
from benchmarks.round_trip import block
from tests.integration.servers.scripted import Request, scripted
from tests.support.processes import ROOT

WAITING = "waiting"
"""The server whose tool waits."""
TOOL_SECONDS = 0.1
WARM_UP = 200


class Row(NamedTuple):
    """What was measured with so many workers: the waiting tool, and the one that answers at once."""

    workers: int
    waiting_rate: float
    path_seconds: float
    rate: float
    cpu_seconds: float


async def wait_and_answer(request: Request) -> None:
    await asyncio.sleep(TOOL_SECONDS)
    await request.text(request.params["arguments"]["text"])


async def measure(workers: int, options: argparse.Namespace, folder: Path) -> Row:
    async with AsyncExitStack() as stack:
        peer = await stack.enter_async_context(scripted(echo=wait_and_answer))
        peer.keep_requests = False
        stack.push_async_callback(asyncio.sleep, 0.2)  # the connections of the workers, which have stopped, end by then
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        peer.tools = [{"name": "echo", "inputSchema": schema}]
        entry = {"type": "http", "url": peer.url, "callstream": {"concurrency": options.slots, "approval": "never"}}
        running = stack.enter_context(
            processes(folder, workers=workers, concurrency=options.slots, more_servers={WAITING: entry})
        )
        mine = await stack.enter_async_context(engine(running.redis_url, folder / "engine.sqlite3", servers=4))
        in_flight = 2 * workers * options.slots
        await mine.prepare(max(in_flight, options.in_flight))
        waiting, quick = partial(mine.call, server=WAITING), partial(mine.call, server=HTTP)
        if workers == options.workers[0]:
            print(describe(folder, running.redis_url), flush=True)
        alone, _ = await block(waiting, 20, 1)
        await block(quick, WARM_UP, options.in_flight)
        group = [psutil.Process(), *(psutil.Process(pid) for pid in running.pids.values())]
        waiting_rates: list[float] = []
        rates: list[float] = []
        used = 0.0
        for _ in range(options.rounds):
            calls = in_flight * 8
            waiting_rates.append(calls / (await block(waiting, calls, in_flight))[1])
            before = _processor_seconds(group)
            rates.append(options.calls / (await block(quick, options.calls, options.in_flight))[1])
            used += _processor_seconds(group) - before
        return Row(
            workers,
            statistics.median(waiting_rates),
            statistics.median(alone) - TOOL_SECONDS,
            statistics.median(rates),
            used / options.rounds / options.calls,
        )


def _processor_seconds(group: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in group))


def report(rows: list[Row], slots: int) -> None:
    first = rows[0]
    by_processors = (psutil.cpu_count() or 1) / first.cpu_seconds
    print(f"\n{'':10}{f'a tool of {TOOL_SECONDS * 1000:.0f} ms':^24}{'a tool that answers at once':^40}")
    print(f"{'workers':10}{'calls/s':>12}{'model':>12}{'calls/s':>14}{'model':>10}{'processor ms per call':>24}")
    for row in rows:
        by_slots = row.workers * slots / (TOOL_SECONDS + first.path_seconds)
        print(
            f"{row.workers:<10}{row.waiting_rate:>12.0f}{min(by_slots, by_processors):>12.0f}"
            f"{row.rate:>14.0f}{by_processors:>10.0f}{row.cpu_seconds * 1000:>24.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description="Calls per second by the number of workers.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--workers", type=at_least(1), nargs="+", default=[1, 2, 3, 4], help="numbers of workers")
    parser.add_argument("--slots", type=at_least(1), default=32, help="slots of a worker")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="how often everything is measured")
    parser.add_argument(
        "--calls", type=at_least(1), default=1000, help="calls of the tool that answers at once, per round"
    )
    parser.add_argument("--in-flight", type=at_least(1), default=64, help="how many of those at a time")
    options = parser.parse_args()
    data = ROOT / ".data"
    data.mkdir(exist_ok=True)
    rows: list[Row] = []
    with suppress(KeyboardInterrupt):
        for workers in options.workers:
            with (
                tempfile.TemporaryDirectory(prefix="bench-", dir=data) as folder,
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                rows.append(runner.run(measure(workers, options, Path(folder))))
        report(rows, options.slots)


if __name__ == "__main__":
    main()
