"""What a reply costs Redis and the engine while thousands of other calls wait at that engine.

python -m benchmarks.waiting [--waiting 10 10000] [--per-second 300 1000] [--seconds 10]

An engine in this process waits for calls that are published; another process answers the oldest ones at a steady rate
with the real START and COMPLETE; each call that is answered is followed by another. Processor time is all that Redis
and the engine use meanwhile, divided by the replies: it includes ENQUEUE, delivery, START, COMPLETE, the mailbox,
and its sweeps over the calls that wait. What both use while no reply comes is measured before: these are the sweeps.
Time in scripts is by the clock of Redis, so on a busy machine it includes pauses of the process.
"""

import argparse
import asyncio
import os
import platform
import resource
import tempfile
import time
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import uvloop
from redis import Redis

from benchmarks.arguments import at_least
from benchmarks.machine import processor
from benchmarks.pair import engine_parts
from callstream_runtime.garbage import tune_gc
from dialog_engine.calls.mailbox import MailboxTimes
from tests.chaos.scenarios.waiting_calls import Seen, waiting_calls
from tests.chaos.scripted_worker import WORKER, Pace, replying
from tests.support.processes import ROOT
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Reading:
    """Counters at one time. Times are seconds: of the monotonic clock, of processor time, and spent in scripts."""

    at: float
    engine: float
    redis: float
    scripts: float
    reads: int
    replies: int

    @classmethod
    def now(cls, client: Any, seen: Seen) -> "Reading":
        """Read all of them. `reads` are those of Redis from its sockets."""
        own, server = resource.getrusage(resource.RUSAGE_SELF), client.info("cpu")
        return cls(
            time.monotonic(),
            own.ru_utime + own.ru_stime,
            server["used_cpu_user"] + server["used_cpu_sys"],
            client.info("commandstats")["cmdstat_evalsha"]["usec"] / 1e6,
            client.info("stats")["total_reads_processed"],
            len(seen),
        )


def used(before: Reading, after: Reading) -> Reading:
    """What was used between two readings."""
    changes = (now - then for then, now in zip(astuple(before), astuple(after), strict=True))
    return Reading(*changes)


async def measure(redis_url: str, client: Any, database: Path, waiting: int, pace: Pace) -> tuple[Reading, Reading]:
    """What is used while `waiting` calls wait without a reply, and while replies come at `pace`."""
    seen = Seen()
    async with engine_parts(redis_url, database) as parts, waiting_calls(parts, client, waiting, seen):
        times = MailboxTimes()
        await asyncio.sleep(times.quiet + times.sweep)  # from now on every sweep finds all of them
        quiet = await _for(pace.seconds, client, seen)
        async with replying(redis_url, pace):
            await wait_until(lambda: len(seen), what="the first answer")
            replying_now = await _for(pace.seconds - 1, client, seen)
    if seen.wrong:
        raise RuntimeError(f"{len(seen.wrong)} calls failed, the first: {seen.wrong[0]}")
    return quiet, replying_now


async def _for(seconds: float, client: Any, seen: Seen) -> Reading:
    before = Reading.now(client, seen)
    await asyncio.sleep(seconds)
    return used(before, Reading.now(client, seen))


def run(folder: Path, waiting: int, pace: Pace) -> tuple[Reading, Reading]:
    """Measure once, with a Redis and a database of its own in `folder`."""
    redis = LocalServer(embedded_binary(), folder)
    redis.start()
    try:
        with Redis.from_url(redis.url) as connection, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            client: Any = connection
            client.execute_command("ACL", "SETUSER", WORKER, "on", "nopass", "~*", "&*", "+@all")
            return runner.run(measure(redis.url, client, folder / "engine.sqlite3", waiting, pace))
    finally:
        redis.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.waiting", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--waiting", type=at_least(1), nargs="+", default=[10, 10_000], help="how many calls wait")
    parser.add_argument("--per-second", type=at_least(1), nargs="+", default=[300, 1_000], help="replies per second")
    parser.add_argument("--seconds", type=at_least(2), default=10, help="how long replies come, and how long none do")
    options = parser.parse_args()
    tune_gc()  # as an engine's own process does
    data = ROOT / ".data"  # on a disk: /tmp may be in memory, where a synced commit costs nothing
    data.mkdir(exist_ok=True)
    heads = ("waiting", "replies/s", "all", "in scripts", "in sweeps", "all", "in sweeps", "Redis")
    rows: list[tuple[str, ...]] = [heads]
    for waiting, rate in product(options.waiting, options.per_second):
        with tempfile.TemporaryDirectory(prefix="bench-", dir=data) as folder:
            quiet, busy = run(Path(folder), waiting, Pace(rate, options.seconds, mute_every=0))
        per_reply, as_long = 1000 / busy.replies, busy.at / quiet.at
        costs = (busy.redis, busy.scripts, quiet.redis * as_long, busy.engine, quiet.engine * as_long)
        figures = (f"{cost * per_reply:.3f}" for cost in costs)
        rows.append((f"{waiting:,}", f"{busy.replies / busy.at:.0f}", *figures, f"{busy.reads / busy.replies:.1f}"))
    print(
        f"\n{os.cpu_count()} cores ({processor()}), load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}"
    )
    print(f"\n{'':24}{'Redis, ms per reply':>36}{'engine, ms per reply':>24}{'reads of':>12}")
    for row in rows:
        print("".join(f"{cell:>12}" for cell in row))


if __name__ == "__main__":
    main()
