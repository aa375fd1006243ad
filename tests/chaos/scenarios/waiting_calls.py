"""Thousands of calls wait at one engine while replies keep coming; some notifications are lost. A part of the turns is
parked: their calls wait for a person. Then Redis is killed, and the person approves: the first half while it is away.

The real path of an engine in this process, real scripts on the other side. Each call that is answered is followed by
another, so that always as many wait. Latency is from before COMPLETE is sent until the caller has the outcome.
"""

import asyncio
import json
import resource
import statistics
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis

from benchmarks.pair import Parts, engine_parts
from callstream_runtime.garbage import tune_gc
from dialog_engine.model import AssistantMessage, CallAnswered, ToolCall, Turn
from dialog_engine.tool_calls.values import Asked
from plugins_contract.catalog import ToolEntry
from plugins_contract.keys import Keys
from plugins_contract.messages import new_id
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from tests.chaos.parked_turns import approve, park
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
    """So many calls wait for a worker, and this is how they are answered; so many turns are parked."""

    waiting: int
    parked: int
    pace: Pace
    p99_ms: float


PLANS = {
    Size.SHORT: Plan(2_000, 200, Pace(per_second=100, seconds=5, mute_every=25), p99_ms=1_000),
    Size.FULL: Plan(10_000, 1_000, Pace(per_second=300, seconds=20, mute_every=100), p99_ms=50),
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
            return asyncio.run(_run(PLANS[size], redis, client, folder / "engine.sqlite3"))
    finally:
        redis.stop()


async def _run(plan: Plan, redis: LocalServer, client: Any, database: Path) -> Report:
    seen = Seen()
    async with engine_parts(redis.url, database) as parts, waiting_calls(parts, client, plan.waiting, seen):
        turns = await park(parts, TOOL, plan.parked)
        async with replying(redis.url, plan.pace):
            await wait_until(lambda: len(seen), 30, what="the first answer")
            figures = await _measure(plan, client, seen, lambda: parts.executor.waiting)
        await wait_until(lambda: len(seen) >= plan.pace.replies, 30, what="all answers")
        report = _judge(plan, figures, seen)
        wrong = len(seen.wrong)
        findings = [*report.findings, *await _approved_through_a_kill(parts, redis, client, turns)]
        findings += seen.wrong[wrong:]
        if parts.executor.waiting < plan.waiting:
            findings.append(f"after the kill {parts.executor.waiting} calls wait, not {plan.waiting}")
    return Report("waiting_calls", {**report.figures, "turns parked through a kill": plan.parked}, tuple(findings))


async def _approved_through_a_kill(
    parts: Parts, redis: LocalServer, client: Any, turns: Sequence[tuple[Turn, Asked]]
) -> list[str]:
    """Approve the calls of all parked turns, half of them while Redis is away: what did not hold."""
    findings: list[str] = []
    [row] = await parts.database.read("SELECT count(*) AS turns FROM turns WHERE status = 'running' AND owner = ''")
    if row.turns != len(turns):
        findings.append(f"of {len(turns)} parked turns {row.turns} are parked")
    redis.kill()
    half = len(turns) // 2
    await approve(parts, TOOL, turns[:half])
    await asyncio.to_thread(redis.start)
    await approve(parts, TOOL, turns[half:])
    ids = [asked.call.correlation_id for _, asked in turns]
    try:
        await wait_until(lambda: client.exists(*map(Keys().call, ids)) == len(ids), 60, what="the approved calls")
    except TimeoutError:
        findings.append(f"of {len(ids)} approved calls only {client.exists(*map(Keys().call, ids))} are in Redis")
    times = Counter(fields["correlationId"] for _, fields in client.xrange(Keys().requests))
    findings += [f"an approved call is {times[each]} times on the stream" for each in ids if times[each] != 1]
    return findings


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
