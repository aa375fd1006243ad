"""How much later calls end while another MCP server of the same worker hangs, or is dead.

    python -m benchmarks.sick_server [--calls 400] [--in-flight 8] [--sick 16] [--rounds 3]

Real processes: Redis, one worker with 32 slots, MCP servers over HTTP and stdio. Some callers call the demo server, one
call after the other each; others call a second server meanwhile, which answers, is stopped (SIGSTOP: it takes
connections and bytes, and answers nothing), or is killed. Not calling it at all is what the others are compared with.
Each state is measured once in a round, so that other work on
the machine affects all of them. The figures are of the calls of the demo server alone, from commit to commit.
"""

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil
import uvloop

from benchmarks.arguments import at_least
from benchmarks.machine import processor
from benchmarks.pair import HTTP, STDIO, Engine, engine, processes
from deploy.local.ports import free_port
from tests.support.processes import ROOT, Process, answers

SICK = "sick"
SLOTS = 32
PAUSE_SECONDS = 0.05
"""Between two calls of one caller: the machine is not to be full, which would hide what a server costs the others."""
STATES = ("not called", "well", "hung over HTTP", "hung over stdio", "dead")


class Servers:
    """The second server over HTTP, and the demo server's process over stdio."""

    def __init__(self, port: int, folder: Path, worker: int) -> None:
        self._port = port
        self._folder = folder
        self._worker = worker
        self._start()

    def _start(self) -> None:
        self.process = Process(
            [sys.executable, "-m", "examples.demo_server", "--port", str(self._port)],
            env={"DEMO_EFFECT_LOG": str(self._folder / "sick.log")},
            cwd=ROOT,
        )
        self.process.wait_ready(lambda: answers(f"http://127.0.0.1:{self._port}/healthz"))

    @contextmanager
    def made(self, state: str) -> Generator[str]:
        """Bring it into the state for the duration of the block. Returns the name of the server to call."""
        [child] = [each for each in psutil.Process(self._worker).children() if "stdio" in each.cmdline()]
        match state:
            case "hung over HTTP":
                self.process.freeze()
                yield SICK
                self.process.send(signal.SIGCONT)
            case "hung over stdio":
                child.suspend()
                yield STDIO
                child.resume()
            case "dead":
                self.process.kill()
                yield SICK
                self._start()
            case _:
                yield SICK


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=at_least(1), default=400, help="of the demo server, in each state and round")
    parser.add_argument("--in-flight", type=at_least(1), default=8, help="callers of the demo server")
    parser.add_argument("--sick", type=at_least(1), default=16, help="callers of the other one")
    parser.add_argument("--rounds", type=at_least(1), default=3)
    options = parser.parse_args()
    times: dict[str, list[float]] = {state: [] for state in STATES}
    async with _running(options.in_flight + options.sick) as (mine, servers):
        for _ in range(options.rounds):
            for state in STATES:
                times[state] += await _measured(mine, servers, state, options)
    print(f"{os.cpu_count()} cores ({processor()}), load {os.getloadavg()[0]:.1f}, {SLOTS} slots\n")
    print(f"{'':<18}{'p50 ms':>10}{'p99 ms':>10}{'p99 later, ms':>16}")
    alone = _p99(times[STATES[0]])
    for state, seconds in times.items():
        p99 = _p99(seconds)
        print(f"{state:<18}{statistics.median(seconds) * 1000:>10.1f}{p99:>10.1f}{p99 - alone:>16.1f}")


@asynccontextmanager
async def _running(turns: int) -> AsyncGenerator[tuple[Engine, Servers]]:
    port = free_port()
    sick = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp", "callstream": {"trust": True}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with processes(folder, workers=1, concurrency=SLOTS, more_servers={SICK: sick}) as started:
            servers = Servers(port, folder, started.pids["worker 1"])
            async with engine(started.redis_url, folder / "engine.db", servers=4) as mine:
                try:
                    yield await mine.prepare(turns), servers
                finally:
                    servers.process.stop()


async def _measured(mine: Engine, servers: Servers, state: str, options: argparse.Namespace) -> list[float]:
    """Seconds of each call of the demo server, while the other server is in the state."""
    calls, times = iter(range(options.calls)), list[float]()

    async def call() -> None:
        for number in calls:
            began = time.perf_counter()
            await mine.call(f"{number}", HTTP)
            times.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE_SECONDS)

    async def call_sick(server: str) -> None:
        while len(times) < options.calls:
            with suppress(RuntimeError):  # what fails here is the point
                await mine.call("x", server)
            await asyncio.sleep(PAUSE_SECONDS)

    with servers.made(state) as server:
        callers = 0 if state == STATES[0] else options.sick
        others = [asyncio.create_task(call_sick(server)) for _ in range(callers)]
        await asyncio.gather(*(call() for _ in range(options.in_flight)))
    await asyncio.gather(*others)
    return times


def _p99(seconds: list[float]) -> float:
    """Milliseconds."""
    return statistics.quantiles(seconds, n=100)[98] * 1000


if __name__ == "__main__":
    uvloop.run(main())
