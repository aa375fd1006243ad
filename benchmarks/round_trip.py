"""The round trip of one tool call through engine and worker, beside the MCP SDK called directly.

    make bench                               or, with options, make bench ARGS="--rounds 3"
    python -m benchmarks.round_trip --help

Through both services the call is committed to SQLite with its outbox row, relayed to Redis, taken by a worker, started
in the ledger, run, completed in the ledger, read from the mailbox, and its result is committed. It is measured with
three servers of one worker: a tool inside the worker (DEVELOPMENT_ECHO), which leaves what Callstream itself costs, and
the demo MCP server over Streamable HTTP and over stdio. Directly: `mcp.Client.call_tool` of the same tool over the same
transport from this process, which stores nothing.

Four more rows divide a call: the same commits and scripts without anything around them (`benchmarks.guarantees`), a
lower bound of a tool in the worker; these with a session of the demo server over each transport, lower bounds of the
whole pair; and the POST of a worker alone.

Each round measures every way once, so that other work on the machine affects all of them; the tables show medians of
the rounds. Ratios are comparable between machines, absolute numbers are not.
"""

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import uvloop
from mcp import Client, ClientSession, StdioServerParameters, stdio_client
from mcp.types import Implementation, TextContent
from redis import Redis

from benchmarks.arguments import at_least
from benchmarks.guarantees import bare_engine
from benchmarks.machine import describe
from benchmarks.pair import HTTP, IN_WORKER, STDIO, STDIO_SERVER, Engine, engine, processes
from callstream_runtime.garbage import tune_gc
from plugins_mcp.mcp.dispatcher import TransportListener, direct_session
from plugins_mcp.mcp.http_client import http_client
from plugins_mcp.mcp.http_posts import PostDispatcher
from plugins_mcp.mcp.transport_options import Http
from tests.support.processes import ROOT

Call = Callable[[str], Awaitable[str]]

PIPE, PAIR_HTTP, PAIR_STDIO = "tool in the worker", "over HTTP", "over stdio"
SDK_HTTP, SDK_STDIO = "SDK over HTTP", "SDK over stdio"
BARE, BARE_HTTP, BARE_STDIO = "commits and scripts", "with HTTP", "with stdio"
POST = "POST of a worker"
TEXT = "The quick brown fox jumps over the lazy dog."
WARM_UP = 100
CALL_SECONDS = 30.0
ENGINE = "engine"
"""The name of this process."""
WORKER = "worker 1"
STDIO_SERVERS = "stdio servers"
COUNTED = ("commands", "scripts", "reads", "commits")


class Meter:
    """Counts what calls consume: processor time by process, work of Redis, commits."""

    def __init__(self, pids: Mapping[str, int], redis: Redis, mine: Engine) -> None:
        this = psutil.Process()
        self._processes = {ENGINE: [this]} | {name: [psutil.Process(pid)] for name, pid in pids.items()}
        alive = [each for each in this.children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]
        children = [(each, each.cmdline()) for each in alive]
        self._processes[WORKER] += [each for each, command in children if "benchmarks.guarantees" in command]
        self._processes[STDIO_SERVERS] = [
            each for each, command in children if "stdio" in command and "benchmarks.guarantees" not in command
        ]
        self._redis = redis
        self._mine = mine

    def read(self) -> dict[str, float]:
        """Processor time in microseconds by process; of Redis, commands, scripts and reads of sockets; commits."""
        used = {name: sum(map(_microseconds, group)) for name, group in self._processes.items()}
        commands: Any = self._redis.info("commandstats")
        stats: Any = self._redis.info("stats")
        counted = {name.removeprefix("cmdstat_"): figures["calls"] for name, figures in commands.items()}
        return used | {
            "commands": sum(counted.values()),
            "scripts": counted.get("evalsha", 0),
            "reads": stats["total_reads_processed"],
            "commits": self._mine.commits,
        }


def _microseconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return (times.user + times.system) * 1e6


@dataclass
class Load:
    """Calls of one kind with some in flight: seconds per call and calls per second of each round, what all consumed."""

    in_flight: int
    medians: list[float] = field(default_factory=list[float])
    rates: list[float] = field(default_factory=list[float])
    times: list[float] = field(default_factory=list[float])
    used: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def p50(self) -> float:
        """Milliseconds of a call."""
        return statistics.median(self.medians) * 1000

    @property
    def rate(self) -> float:
        """Calls per second."""
        return statistics.median(self.rates)

    def per_call(self, what: str) -> float:
        """How much of it a call consumed."""
        return self.used.get(what, 0.0) / len(self.times)

    async def round(self, call: Call, calls: int, meter: Meter) -> None:
        """Measure once more."""
        before = meter.read()
        times, seconds = await block(call, calls, self.in_flight)
        for what, now in meter.read().items():
            self.used[what] = self.used.get(what, 0.0) + now - before[what]
        self.medians.append(statistics.median(times))
        self.rates.append(calls / seconds)
        self.times += times


class Measured:
    """One way to call, alone and with many in flight."""

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[Call]], in_flight: int) -> None:
        """`opened` is opened for each round: a server closes connections that were idle during the other rounds."""
        self._opened = opened
        self.alone, self.loaded = Load(1), Load(in_flight)

    async def round(self, alone: int, burst: int, metered: Callable[[], Meter]) -> None:
        """Measure once more."""
        async with self._opened() as call:
            meter = metered()  # now all processes are there
            await block(call, WARM_UP, self.loaded.in_flight)
            await self.alone.round(call, alone, meter)
            await self.loaded.round(call, burst, meter)


async def timed(call: Call) -> float:
    began = time.perf_counter()
    async with asyncio.timeout(CALL_SECONDS):
        answer = await call(TEXT)
    seconds = time.perf_counter() - began
    assert answer == TEXT, answer
    return seconds


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


def report(ways: dict[str, Measured], in_flight: int) -> None:
    """Print ratios, then absolute numbers, then what a call consumes."""
    print(f"\n{'Callstream ÷ SDK':20}{'p50 alone':>12}{f'calls/s, {in_flight} in flight':>26}")
    for pair, sdk in ((PAIR_HTTP, SDK_HTTP), (PAIR_STDIO, SDK_STDIO)):
        latency = ways[pair].alone.p50 / ways[sdk].alone.p50
        print(f"{pair:20}{latency:>12.2f}{ways[pair].loaded.rate / ways[sdk].loaded.rate:>26.2f}")
    print(f"\n{'':20}{'p50 ms':>10}{'calls/s':>10}{f'p50 ms, {in_flight} in flight':>24}")
    for name, way in ways.items():
        print(f"{name:20}{way.alone.p50:>10.2f}{way.loaded.rate:>10.0f}{way.loaded.p50:>24.1f}")
    services = [name for name in ways[PIPE].loaded.used if name not in COUNTED]
    print(f"\nprocessor time per call, µs, {in_flight} in flight, and alone")
    print(f"{'':20}{'all':>14}" + "".join(f"{name:>14}" for name in services))
    for name, way in ways.items():
        loads = [[load.per_call(service) for service in services] for load in (way.loaded, way.alone)]
        cells = zip(*([sum(load), *load] for load in loads), strict=True)
        print(f"{name:20}" + "".join(f"{f'{loaded:.0f}, {alone:.0f}':>14}" for loaded, alone in cells))
    print(f"\nper call, {in_flight} in flight, and alone\n{'':20}" + "".join(f"{what:>14}" for what in COUNTED))
    for name in (PIPE, PAIR_HTTP, PAIR_STDIO):
        cells = [(ways[name].loaded.per_call(what), ways[name].alone.per_call(what)) for what in COUNTED]
        print(f"{name:20}" + "".join(f"{f'{loaded:.1f}, {alone:.1f}':>14}" for loaded, alone in cells))


@asynccontextmanager
async def direct(client: Client) -> AsyncGenerator[Call]:
    """The SDK called from this process."""
    async with client:
        yield partial(_echo, client)


class _Unobserved(TransportListener):
    def lost(self) -> None:
        pass

    async def result(self, result: dict[str, Any]) -> None:
        pass


@asynccontextmanager
async def posting(url: str) -> AsyncGenerator[Call]:
    """The POSTs of a worker, from this process."""
    async with Client(url) as client, http_client(Http(url)) as http:
        discovered = client.session.discover_result
        assert discovered
        caller = Implementation(name="benchmark", version="1")
        async with direct_session(PostDispatcher(http, url, _Unobserved()), discovered, caller) as session:
            yield partial(_echo, session)


async def _echo(caller: Client | ClientSession, text: str) -> str:
    result = await caller.call_tool("echo", {"text": text})
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


async def measure(options: argparse.Namespace, folder: Path) -> None:
    tune_gc()  # as an engine's own process does
    async with AsyncExitStack() as stack:
        running = stack.enter_context(processes(folder, workers=1, concurrency=options.concurrency))
        mine = await stack.enter_async_context(engine(running.redis_url, folder / "engine.sqlite3"))
        await mine.prepare(options.in_flight)
        bare: dict[str, Call] = {}
        for name, server in ((BARE, ()), (BARE_HTTP, (running.mcp_url,)), (BARE_STDIO, STDIO_SERVER)):
            opened = bare_engine(running.redis_url, folder / f"{name}.sqlite3", options.in_flight, server)
            bare[name] = (await stack.enter_async_context(opened)).call
        redis = stack.enter_context(contextlib.closing(Redis.from_url(running.redis_url)))
        stdio = StdioServerParameters(command=STDIO_SERVER[0], args=list(STDIO_SERVER[1:]), cwd=ROOT)
        ways = {
            PIPE: Measured(lambda: nullcontext(partial(mine.call, server=IN_WORKER)), options.in_flight),
            PAIR_HTTP: Measured(lambda: nullcontext(partial(mine.call, server=HTTP)), options.in_flight),
            PAIR_STDIO: Measured(lambda: nullcontext(partial(mine.call, server=STDIO)), options.in_flight),
            SDK_HTTP: Measured(lambda: direct(Client(running.mcp_url)), options.in_flight),
            SDK_STDIO: Measured(lambda: direct(Client(stdio_client(stdio))), options.in_flight),
            BARE: Measured(lambda: nullcontext(bare[BARE]), options.in_flight),
            BARE_HTTP: Measured(lambda: nullcontext(bare[BARE_HTTP]), options.in_flight),
            BARE_STDIO: Measured(lambda: nullcontext(bare[BARE_STDIO]), options.in_flight),
            POST: Measured(lambda: posting(running.mcp_url), options.in_flight),
        }
        print(f"{describe(folder, running.redis_url)}; {options.concurrency} slots", flush=True)
        for _ in range(options.rounds):
            for way in ways.values():
                await way.round(options.calls, options.burst, lambda: Meter(running.pids, redis, mine))
        report(ways, options.in_flight)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.round_trip",
        description="One tool call, there and back.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rounds", type=at_least(1), default=10, help="how often everything is measured, in turn")
    parser.add_argument("--calls", type=at_least(1), default=50, help="calls one at a time, per round")
    parser.add_argument("--burst", type=at_least(1), default=2048, help="calls with many in flight, per round")
    parser.add_argument("--in-flight", type=at_least(1), default=64, help="how many that is")
    parser.add_argument("--concurrency", type=at_least(1), default=32, help="slots of the worker")
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
