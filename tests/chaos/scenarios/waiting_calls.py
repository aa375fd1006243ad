"""Thousands of calls wait at one engine while replies keep coming; some notifications are lost.

The real path of an engine in this process, real scripts on the other side. Each call that is answered is followed by
another, so that always as many wait. Latency is from before COMPLETE is sent until the caller has the outcome.
"""

import asyncio
import json
import resource
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis

from benchmarks.pair import Parts, engine_parts
from callstream_runtime.garbage import tune_gc
from dialog_engine.model import AssistantMessage, CallAnswered, ToolCall, Turn
from plugins_contract.catalog import ToolEntry
from plugins_contract.keys import Keys
from plugins_contract.messages import new_id
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from tests.chaos.report import Report, Size
from tests.chaos.scripted_worker import MUTE, WORKER, Pace, replying
from tests.support.beginnings import begin
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Caller:
    """One turn that makes one call after the other."""

    parts: Parts
    turn: Turn

    async def call(self, tool: ToolEntry, arguments: dict[str, Any]) -> tuple[ToolOutcome, float]:
        """One call, from its commit to the commit of its result: the outcome, and the monotonic time when it came."""
        call = ToolCall("call_1", new_id(), tool.name, json.dumps(arguments))
        request = self.parts.executor.request(self.turn, call, tool, arguments)
        await self.parts.calls.add_round(self.turn, AssistantMessage("", (call,)), [request], {})
        async for update in self.parts.executor.run([request]):
            if isinstance(update, CallAnswered):
                at = time.monotonic()
                await self.parts.calls.add_result(self.turn, call, update.outcome)
                return update.outcome, at
        raise RuntimeError("the call ended without an answer")


async def caller(parts: Parts, subject: str) -> Caller:
    return Caller(parts, await begin(parts.turns, subject, None, "a question"))


CONNECTIONS = 8
LOST_NOTIFICATION_SECONDS = 5.0
CALLS_OF_A_SUBJECT = 50
HARNESS = "harness"
TOOL = ToolEntry(name="demo__echo", server="demo", tool="echo", input_schema={}, timeout_ms=300_000)
Figures = dict[str, float | int | str]


@dataclass(frozen=True)
class Plan:
    """So many calls wait, and this is how they are answered."""

    waiting: int
    pace: Pace
    p99_ms: float


PLANS = {
    Size.SHORT: Plan(2_000, Pace(per_second=100, seconds=5, mute_every=25), p99_ms=1_000),
    Size.FULL: Plan(10_000, Pace(per_second=300, seconds=20, mute_every=100), p99_ms=50),
}


@dataclass
class Seen:
    """The answers that callers received. Latencies are seconds."""

    notified: list[float] = field(default_factory=list[float])
    unnotified: list[float] = field(default_factory=list[float])
    wrong: list[str] = field(default_factory=list[str])

    def __len__(self) -> int:
        return len(self.notified) + len(self.unnotified) + len(self.wrong)

    def take(self, outcome: ToolOutcome, at: float) -> None:
        if outcome.state is not CallState.SUCCEEDED:
            self.wrong.append(f"a call is {outcome.state}: {outcome.error}")
            return
        (block,) = outcome.content
        assert isinstance(block, TextBlock)
        kind, sent_at = block.text.split()
        (self.unnotified if kind == MUTE else self.notified).append(at - float(sent_at))


def run(size: Size, folder: Path) -> Report:
    tune_gc()  # as an engine's own process does
    redis = LocalServer(embedded_binary(), folder)
    redis.start()
    client: Any = Redis.from_url(redis.url, decode_responses=True, client_name=HARNESS)
    try:
        with client:
            client.execute_command("ACL", "SETUSER", WORKER, "on", "nopass", "~*", "&*", "+@all")
            figures, seen = asyncio.run(_run(PLANS[size], redis.url, client, folder / "engine.sqlite3"))
    finally:
        redis.stop()
    return _judge(PLANS[size], figures, seen)


async def _run(plan: Plan, url: str, client: Any, database: Path) -> tuple[Figures, Seen]:
    seen = Seen()
    async with engine_parts(url, database) as parts, waiting_calls(parts, client, plan.waiting, seen):
        async with replying(url, plan.pace):
            await wait_until(lambda: len(seen), 30, what="the first answer")
            figures = await _measure(plan, client, seen, lambda: parts.executor.waiting)
        await wait_until(lambda: len(seen) >= plan.pace.replies, 30, what="all answers")
    return figures, seen


@asynccontextmanager
async def waiting_calls(parts: Parts, client: Any, count: int, seen: Seen) -> AsyncGenerator[None]:
    """Keep `count` published calls waiting for the duration of the block: each that is answered is followed by another.

    `client` is a client of the same Redis that blocks.
    """
    callers = await asyncio.gather(*(caller(parts, f"subject {n // CALLS_OF_A_SUBJECT}") for n in range(count)))
    tasks = [asyncio.create_task(_keep_calling(each, seen)) for each in callers]
    await wait_until(lambda: client.xlen(Keys().requests) >= count, 120, what="all calls on the stream")
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep_calling(caller: Caller, seen: Seen) -> None:
    while True:
        seen.take(*await caller.call(TOOL, {"text": "hello"}))


async def _measure(plan: Plan, client: Any, seen: Seen, waiting: Any) -> Figures:
    began, before = time.monotonic(), len(seen)
    cpu, redis_cpu = _cpu(), _redis_cpu(client)
    connections, fewest = 0, plan.waiting

    def look() -> bool:
        nonlocal connections, fewest
        connections = max(connections, sum(_is_the_engines(each) for each in client.client_list()))
        fewest = min(fewest, waiting())
        return time.monotonic() - began >= plan.pace.seconds - 1

    await wait_until(look, plan.pace.seconds + 60, every=0.5)
    seconds, answers = time.monotonic() - began, len(seen) - before
    return {
        "calls waiting, at least": fewest,
        "connections of the engine, at most": connections,
        "answers per second": answers / seconds,
        "CPU of the engine per answer, ms": (_cpu() - cpu) / answers * 1000,
        "CPU of the engine, share of a core": (_cpu() - cpu) / seconds,
        "CPU of Redis per answer, ms": (_redis_cpu(client) - redis_cpu) / answers * 1000,
    }


def _judge(plan: Plan, figures: Figures, seen: Seen) -> Report:
    p50, p99 = statistics.median(seen.notified), statistics.quantiles(seen.notified, n=100)[98]
    figures |= {
        "answers": len(seen),
        "latency p50, ms": p50 * 1000,
        "latency p99, ms": p99 * 1000,
        "lost notifications": len(seen.unnotified),
        "slowest answer without a notification, seconds": max(seen.unnotified),
    }
    findings = list(seen.wrong)
    if p99 * 1000 > plan.p99_ms:
        findings.append(f"the latency p99 is {p99 * 1000:.0f} ms, not {plan.p99_ms:g}")
    if max(seen.unnotified) > LOST_NOTIFICATION_SECONDS:
        findings.append(f"without its notification an answer came after {max(seen.unnotified):.1f} s")
    if int(figures["connections of the engine, at most"]) > CONNECTIONS:
        findings.append(f"the engine has {figures['connections of the engine, at most']} connections")
    return Report("waiting_calls", figures, tuple(findings))


def _is_the_engines(client: dict[str, str]) -> bool:
    return client["user"] != WORKER and client["name"] != HARNESS


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _redis_cpu(client: Any) -> float:
    info = client.info("cpu")
    return info["used_cpu_user"] + info["used_cpu_sys"]
