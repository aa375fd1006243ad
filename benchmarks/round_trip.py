"""The round trip of one tool call through engine and worker, beside a direct call of the same tool.

    make bench                               or, with options, make bench ARGS="--calls 1000"
    python -m benchmarks.round_trip --help

Through both services: the call is committed to SQLite with its outbox row, relayed to Redis, taken by a worker, started
in the ledger, run at the MCP server over Streamable HTTP, completed in the ledger, read from the mailbox, and its
result is committed. Directly: `mcp.Client.call_tool` of the same tool on the same server from this process. The
baseline is a message to another process and back over two Redis streams, which runs no tool and stores nothing.

The three are measured in turn, so that other work on the machine affects all of them. Ratios are comparable between
machines; absolute numbers are not.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from mcp import Client
from mcp.types import TextContent

from benchmarks.arguments import at_least
from benchmarks.floor import floor
from benchmarks.machine import describe
from benchmarks.pair import engine, processes
from tests.support.processes import ROOT

Call = Callable[[str], Awaitable[str]]

PAIR, DIRECT, FLOOR = "Callstream", "direct MCP call", "Redis streams alone"
TEXT = "The quick brown fox jumps over the lazy dog."
WARM_UP = 100
CALL_SECONDS = 30.0
PHASE_SECONDS = 20.0
"""A phase ends after this time, however many calls are left: even a busy machine finishes within a minute."""


@dataclass
class Measured:
    """The figures of one way to call: seconds per call, and calls per second of each block with many in flight."""

    call: Call
    alone: list[float] = field(default_factory=list[float])
    loaded: list[float] = field(default_factory=list[float])
    rates: list[float] = field(default_factory=list[float])


async def timed(call: Call) -> float:
    began = time.perf_counter()
    async with asyncio.timeout(CALL_SECONDS):
        answer = await call(TEXT)
    seconds = time.perf_counter() - began
    assert answer == TEXT, answer
    return seconds


async def one_at_a_time(ways: Sequence[Measured], calls: int) -> None:
    ends_at = time.perf_counter() + PHASE_SECONDS
    for _ in range(calls):
        for way in ways:
            way.alone.append(await timed(way.call))
        if time.perf_counter() > ends_at:
            return


async def many_in_flight(ways: Sequence[Measured], calls: int, in_flight: int, blocks: int) -> None:
    ends_at = time.perf_counter() + PHASE_SECONDS
    for _ in range(blocks):
        for way in ways:
            times, seconds = await block(way.call, calls // blocks, in_flight)
            way.loaded += times
            way.rates.append(len(times) / seconds)
        if time.perf_counter() > ends_at:
            return


async def block(call: Call, calls: int, in_flight: int) -> tuple[list[float], float]:
    """The seconds of each call and of all: `in_flight` callers, each with one call at a time."""
    left = iter(range(calls))
    times: list[float] = []

    async def caller() -> None:
        for _ in left:
            times.append(await timed(call))  # noqa: PERF401 -- all callers append to one list

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return times, time.perf_counter() - began


def percentile(values: Sequence[float], percent: int) -> float:
    """The percentile of these times, in milliseconds."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1] * 1000


def report(ways: dict[str, Measured], in_flight: int) -> None:
    """Print ratios, then absolute numbers."""
    print(f"\n{'':24}{'one at a time':^21}{f'{in_flight} in flight':^33}")
    print(f"{'as a multiple of':24}{'p50':>10}{'p99':>10}{'calls/s':>12}{'p50':>10}{'p99':>10}")
    mine = figures(ways[PAIR])
    for name in (DIRECT, FLOOR):
        cells = [a / b for a, b in zip(mine, figures(ways[name]), strict=True)]
        print(
            f"{name:24}"
            + "".join(f"{cell:>{width}.2f}" for cell, width in zip(cells, (10, 10, 12, 10, 10), strict=True))
        )
    print(f"\n{'':24}{'p50 ms':>10}{'p99 ms':>10}{'calls/s':>12}{'p50 ms':>10}{'p99 ms':>10}")
    for name, way in ways.items():
        a, b, rate, c, d = figures(way)
        print(f"{name:24}{a:>10.2f}{b:>10.2f}{rate:>12.0f}{c:>10.1f}{d:>10.1f}")
    pair = ways[PAIR]
    print(f"\n{len(pair.alone)} calls of each one at a time, {len(pair.loaded)} with {in_flight} in flight.")


def figures(way: Measured) -> tuple[float, float, float, float, float]:
    return (
        percentile(way.alone, 50),
        percentile(way.alone, 99),
        statistics.median(way.rates),
        percentile(way.loaded, 50),
        percentile(way.loaded, 99),
    )


async def measure(options: argparse.Namespace, folder: Path) -> None:
    async with AsyncExitStack() as stack:
        running = stack.enter_context(processes(folder, workers=options.workers, concurrency=options.concurrency))
        mine = await stack.enter_async_context(engine(running.redis_url, folder / "engine.sqlite3"))
        await mine.prepare(options.in_flight)
        client = await stack.enter_async_context(Client(running.mcp_url))
        raw = await stack.enter_async_context(floor(running.redis_url))

        async def direct(text: str) -> str:
            result = await client.call_tool("echo", {"text": text})
            return "".join(part.text for part in result.content if isinstance(part, TextContent))

        ways = {PAIR: Measured(mine.call), DIRECT: Measured(direct), FLOOR: Measured(raw.call)}
        for way in ways.values():
            await block(way.call, WARM_UP, min(8, options.in_flight))
        print(
            f"{describe(folder, running.redis_url)}; {options.workers} worker of {options.concurrency} slots",
            flush=True,
        )
        await one_at_a_time(list(ways.values()), options.calls)
        await many_in_flight(list(ways.values()), options.burst, options.in_flight, options.blocks)
        report(ways, options.in_flight)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.round_trip",
        description="One tool call, there and back.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--calls", type=at_least(1), default=400, help="calls one at a time")
    parser.add_argument("--burst", type=at_least(1), default=2000, help="calls with many in flight")
    parser.add_argument("--in-flight", type=at_least(1), default=64, help="how many that is")
    parser.add_argument("--blocks", type=at_least(1), default=4, help="blocks that the burst is split into")
    parser.add_argument("--workers", type=at_least(1), default=1, help="worker processes")
    parser.add_argument("--concurrency", type=at_least(1), default=16, help="slots of a worker")
    options = parser.parse_args()

    # On the disk of the repository: /tmp may be in memory, where a synced commit costs nothing.
    data = ROOT / ".data"
    data.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=data) as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        suppress(KeyboardInterrupt),
    ):
        runner.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()
