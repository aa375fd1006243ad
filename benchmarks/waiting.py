"""What a reply costs Redis and the engine while thousands of other calls wait at that engine.

python -m benchmarks.waiting [--waiting 10 10000] [--per-second 300] [--seconds 20]

An engine in this process waits for calls that are published; another process answers the oldest ones at a steady rate
with the real START and COMPLETE; each call that is answered is followed by another. Processor time is all that Redis
and the engine use meanwhile, divided by the replies: it includes ENQUEUE, delivery, START, COMPLETE and two reads of
the mailbox, and the sweeps of the mailbox over the calls that wait. What both use while no reply comes is measured
before, for as long: these are the sweeps.
"""

import argparse
import asyncio
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from redis import Redis

from benchmarks.arguments import at_least
from benchmarks.machine import describe
from benchmarks.pair import engine_parts
from dialog_engine.calls.mailbox import QUIET_SECONDS, SWEEP_SECONDS
from dialog_engine.main import tune_gc
from tests.chaos.scenarios.waiting_calls import Seen, waiting_calls
from tests.chaos.scripted_worker import WORKER, Pace, replying
from tests.support.processes import ROOT
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Reading:
    """Seconds on the monotonic clock; seconds of processor time; the answers so far, and those without success."""

    at: float
    engine: float
    redis: float
    replies: int

    @classmethod
    def now(cls, client: Any, seen: Seen) -> "Reading":
        """Read all of them."""
        own, server = resource.getrusage(resource.RUSAGE_SELF), client.info("cpu")
        redis = server["used_cpu_user"] + server["used_cpu_sys"]
        return cls(time.monotonic(), own.ru_utime + own.ru_stime, redis, len(seen))


@dataclass(frozen=True)
class Used:
    """What both used between two readings."""

    before: Reading
    after: Reading

    @property
    def seconds(self) -> float:
        """How long that was."""
        return self.after.at - self.before.at

    @property
    def replies(self) -> int:
        """How many replies came meanwhile."""
        return self.after.replies - self.before.replies

    @property
    def engine(self) -> float:
        """Seconds of processor time of the engine."""
        return self.after.engine - self.before.engine

    @property
    def redis(self) -> float:
        """Seconds of processor time of Redis."""
        return self.after.redis - self.before.redis


async def measure(redis_url: str, client: Any, database: Path, waiting: int, pace: Pace) -> tuple[Used, Used]:
    """What is used while `waiting` calls wait without a reply, and while replies come at `pace`."""
    seen = Seen()
    async with engine_parts(redis_url, database) as parts, waiting_calls(parts, client, waiting, seen):
        await asyncio.sleep(QUIET_SECONDS + SWEEP_SECONDS)  # from now on every sweep finds all of them
        quiet = await _for(pace.seconds, client, seen)
        async with replying(redis_url, pace):
            await wait_until(lambda: len(seen), what="the first answer")
            replying_now = await _for(pace.seconds - 1, client, seen)
    if seen.wrong:
        raise RuntimeError(f"{len(seen.wrong)} calls failed, the first: {seen.wrong[0]}")
    return quiet, replying_now


async def _for(seconds: float, client: Any, seen: Seen) -> Used:
    before = Reading.now(client, seen)
    await asyncio.sleep(seconds)
    return Used(before, Reading.now(client, seen))


def run(folder: Path, waiting: int, pace: Pace) -> tuple[Used, Used]:
    """Measure once, with a Redis and a database of its own in `folder`."""
    redis = LocalServer(embedded_binary(), folder)
    redis.start()
    try:
        with Redis.from_url(redis.url) as connection, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            client: Any = connection
            client.execute_command("ACL", "SETUSER", WORKER, "on", "nopass", "~*", "&*", "+@all")
            print(describe(folder, redis.url), flush=True)
            return runner.run(measure(redis.url, client, folder / "engine.sqlite3", waiting, pace))
    finally:
        redis.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.waiting", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--waiting", type=at_least(1), nargs="+", default=[10, 10_000], help="how many calls wait")
    parser.add_argument("--per-second", type=at_least(1), default=300, help="replies per second")
    parser.add_argument("--seconds", type=at_least(2), default=20, help="how long replies come, and how long none do")
    options = parser.parse_args()
    tune_gc()  # as an engine's own process does
    data = ROOT / ".data"  # on a disk: /tmp may be in memory, where a synced commit costs nothing
    data.mkdir(exist_ok=True)
    pace = Pace(options.per_second, options.seconds, mute_every=0)
    rows: list[str] = []
    for waiting in options.waiting:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=data) as folder:
            quiet, busy = run(Path(folder), waiting, pace)
        cells = [
            f"{waiting:,}",
            f"{busy.replies / busy.seconds:.0f}",
            f"{busy.redis / busy.replies * 1000:.3f}",
            f"{busy.engine / busy.replies * 1000:.3f}",
            f"{quiet.redis / quiet.seconds * 1000:.1f}",
            f"{quiet.engine / quiet.seconds * 1000:.1f}",
        ]
        rows.append("".join(f"{cell:>16}" for cell in cells))
    heads = ["calls waiting", "replies/s", "Redis ms/reply", "engine ms/reply", "Redis ms/s idle", "engine ms/s idle"]
    print("\n" + "".join(f"{head:>16}" for head in heads))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
