"""What the log lines of a tool call cost: processor time per call of engine and worker, with INFO and with WARNING.

    python -m benchmarks.call_trail --calls 10000

The engine's components run in this process, and one worker in another; both write JSON lines to a file. Metrics are
always counted. The two levels are measured in turn, so that other work on the machine affects both.
"""

import argparse
import asyncio
import logging
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import uvloop

from benchmarks.arguments import at_least
from benchmarks.machine import describe
from benchmarks.pair import Engine, engine, processes
from benchmarks.round_trip import TEXT, block
from callstream_runtime.logs import set_up_logging

WARM_UP = 200
IN_FLIGHT = 16
BLOCKS = 10


async def measure(calls: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Microseconds of processor time per call, of each block, by level and service."""
    found: dict[str, dict[str, list[float]]] = {}
    async with AsyncExitStack() as stack:
        pairs: dict[str, tuple[Engine, psutil.Process]] = {}
        for level in ("WARNING", "INFO"):
            own = folder / level
            own.mkdir()
            running = stack.enter_context(
                processes(own, workers=1, concurrency=IN_FLIGHT, log={"LOG_LEVEL": level, "LOG_FORMAT": "json"})
            )
            mine = await stack.enter_async_context(engine(running.redis_url, own / "engine.sqlite3"))
            await mine.prepare(IN_FLIGHT)
            if not pairs:
                print(describe(folder, running.redis_url))
            pairs[level] = mine, psutil.Process(running.pids["worker 1"])
            await block(mine.call, WARM_UP, IN_FLIGHT)
        for _ in range(BLOCKS):
            for level, (mine, worker) in pairs.items():
                logging.getLogger().setLevel(level)
                before, began = worker.cpu_times(), time.process_time()
                await block(mine.call, calls // (2 * BLOCKS), IN_FLIGHT)
                spent, after = time.process_time() - began, worker.cpu_times()
                of_worker = after.user + after.system - before.user - before.system
                figures = found.setdefault(level, {"engine": [], "worker": []})
                figures["engine"].append(spent / (calls // (2 * BLOCKS)) * 1e6)
                figures["worker"].append(of_worker / (calls // (2 * BLOCKS)) * 1e6)
    return found


def main() -> None:
    """Measure, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=at_least(200), default=10_000, help="calls in all (default: 10000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="callstream-") as folder:
        log = Path(folder) / "engine.log"
        set_up_logging("INFO", "json", log.open("w", buffering=1))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(measure(options.calls, Path(folder)))
        lines = log.read_text().count("\n")
    print(f"{'':10}{'WARNING':>12}{'INFO':>12}{'added':>12}   microseconds per call, medians of {BLOCKS} blocks")
    for service in ("engine", "worker"):
        quiet, logged = (statistics.median(found[level][service]) for level in ("WARNING", "INFO"))
        print(f"{service:10}{quiet:>12.0f}{logged:>12.0f}{logged - quiet:>12.0f}")
    print(f"{options.calls} calls of {len(TEXT)} characters, {IN_FLIGHT} in flight; {lines} lines of the engine")


if __name__ == "__main__":
    main()
