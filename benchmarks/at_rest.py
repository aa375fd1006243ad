"""What the audit and encryption at rest add to a tool call: processor time of all processes, in one run.

    python -m benchmarks.at_rest [--rounds 10] [--burst 512] [--bytes 44]

Three engines share one worker, whose tool answers inside it: one without the audit, one with it, and one that encrypts
as well. Each round measures each of them once; the table shows medians of the rounds.
"""

import argparse
import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from redis import Redis

from benchmarks.arguments import at_least
from benchmarks.machine import describe
from benchmarks.pair import IN_WORKER, engine, processes
from benchmarks.round_trip import COUNTED, WARM_UP, Meter
from callstream_runtime.encryption_keys import cipher_of
from dialog_engine.chat.audit import AuditEvent
from dialog_engine.storage.audit import AuditRecorded, AuditTrail
from dialog_engine.storage.database import Transaction
from tests.support.processes import ROOT

SECRET = "a key of the benchmark, long enough"  # noqa: S105 -- not a secret
IN_FLIGHT = 64


class NoAudit(AuditTrail):
    """Records nothing."""

    def add(self, tx: Transaction, events: Sequence[AuditEvent]) -> Sequence[AuditRecorded]:
        return []

    def digest(self, arguments: Any) -> str:
        return ""


async def measure(options: argparse.Namespace, folder: Path) -> None:
    (folder / "keys").write_text(SECRET)
    text = "x" * options.bytes
    async with AsyncExitStack() as stack:
        log = {"LOG_LEVEL": "WARNING", "ENCRYPTION_KEYS_FILE": str(folder / "keys")}
        running = stack.enter_context(processes(folder, workers=1, concurrency=32, log=log))
        redis = stack.enter_context(contextlib.closing(Redis.from_url(running.redis_url)))
        kinds: dict[str, dict[str, Any]] = {
            "neither": {"trail": NoAudit},
            "audit": {},
            "audit and encryption": {"cipher": cipher_of([SECRET])},
        }
        ways: dict[str, tuple[Any, Meter]] = {}
        for number, (name, changes) in enumerate(kinds.items()):
            file = folder / f"engine-{number}.sqlite3"
            mine = await stack.enter_async_context(engine(running.redis_url, file, **changes))
            await mine.prepare(IN_FLIGHT)
            ways[name] = partial(mine.call, text, IN_WORKER), Meter(running.pids, redis, mine)
        for call, _ in ways.values():
            await burst(call, WARM_UP)
        print(f"{describe(folder, running.redis_url)}; {options.bytes} bytes each way", flush=True)
        used = {name: list[float]() for name in ways}
        for _ in range(options.rounds):
            for name, (call, meter) in ways.items():
                before = meter.read()
                await burst(call, options.burst)
                spent = {what: now - before[what] for what, now in meter.read().items() if what not in COUNTED}
                used[name].append(sum(spent.values()) / options.burst)
        for name, rounds in used.items():
            print(f"{name:22}{statistics.median(rounds):>8.0f} µs per call")


async def burst(call: Any, calls: int) -> None:
    left = iter(range(calls))

    async def caller() -> None:
        for _ in left:
            await call()

    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))


def main() -> None:
    parser = argparse.ArgumentParser(description="What the audit and encryption at rest add to a tool call.")
    parser.add_argument("--rounds", type=at_least(1), default=10, help="how often everything is measured, in turn")
    parser.add_argument("--burst", type=at_least(1), default=512, help="calls per round")
    parser.add_argument("--bytes", type=at_least(1), default=44, help="length of the argument and of the result")
    options = parser.parse_args()
    data = ROOT / ".data"
    data.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=data) as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()
