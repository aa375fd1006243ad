"""One reply of Redis in a hundred is lost: to everybody, of every command, and its connection with it.

The real path of two engines, or on SQLite of one, and two real workers with short leases. Calls of every kind: quick,
slow with progress, not repeatable, stopped before and after they began, and of a server that only one worker has.
"""

import asyncio
import contextlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from benchmarks.pair import Parts, engine_parts
from dialog_engine.model import CallQueued, CallRunning, CallUpdate
from plugins_contract.catalog import ToolEntry
from plugins_contract.encryption import CLEAR
from plugins_contract.keys import Keys
from plugins_contract.ledger import decode_reply
from plugins_contract.outcomes import CallFinished, CallState
from tests.chaos.behind_proxies import OF_EVERY_CALL, SCRIPTS, Proxied, behind_proxies
from tests.chaos.calls_through import AnsweredCall, Caller, caller
from tests.chaos.faults import Faults
from tests.chaos.lost_deliveries import LostDeliveries, watched
from tests.chaos.report import Report, Size
from tests.support import store as stores
from tests.support.waiting import wait_until, wait_until_blocking

STORES: Sequence[stores.Kind] = ("postgres", "sqlite")
SHARE = 0.01
LOST_DELIVERY_SECONDS = 2.5
"""Shorter than the lease of these workers: its consumer finds a lost delivery itself, before a sweep takes it over."""
OPERATIONS = {Size.SHORT: 3_000, Size.FULL: 50_000}
LONGEST = 600.0
"""Seconds that a run may take; one that is slower has lost something."""
IN_FLIGHT = 48
DEMO, RARE = "demo", "rare"


@dataclass(frozen=True)
class Kind:
    """A kind of call: one of `every` calls is of it."""

    every: int
    server: str
    tool: str
    arguments: dict[str, Any]
    stop_at: type[CallUpdate] | None = None


KINDS = (
    Kind(37, DEMO, "slow_job", {"seconds": 1.5, "steps": 6}),
    Kind(11, RARE, "increment_counter", {"counter": "rare"}),
    Kind(17, DEMO, "increment_counter", {"counter": "stopped", "answer_after_seconds": 5}, CallRunning),
    Kind(13, DEMO, "increment_counter", {"counter": "unwanted"}, CallQueued),
    Kind(3, DEMO, "echo", {"text": "hello"}),
    Kind(1, DEMO, "increment_counter", {"counter": "plain"}),
)
"""The first that fits is taken."""


def run(size: Size, folder: Path, *, store: stores.Kind = "postgres") -> Report:
    """Lose replies until there were enough operations, then look at every call."""
    with behind_proxies(folder, quick=True, database=store) as proxied:
        _start(proxied)
        with watched(proxied.stack.redis.url, passed_on=RARE) as lost_deliveries:
            begun = time.monotonic()
            answered = asyncio.run(_calls(proxied, OPERATIONS[size]))
            seconds = time.monotonic() - begun
            _settle(proxied)
        commands, lost = proxied.counted()
        findings = [*_judge(proxied, answered, lost_deliveries), *_never_lost(lost)]
        figures: dict[str, float | int | str] = {
            "operations": sum(commands.values()),
            "replies lost": sum(lost.values()),
            "replies lost of each script": ", ".join(
                f"{s.upper()} {lost[s.upper()]}" for s in SCRIPTS if s.upper() in lost
            ),
            "replies lost of the rest": ", ".join(f"{name} {lost[name]}" for name in sorted(lost) if not _script(name)),
            "calls": len(answered),
            "calls per second": len(answered) / seconds,
            "outcomes": ", ".join(f"{state} {n}" for state, n in Counter(t.outcome.state for t in answered).items()),
            "slowest plain call, seconds": max(
                t.seconds for t in answered if t.request.arguments.get("counter") == "plain"
            ),
            "oldest lost delivery, seconds": lost_deliveries.oldest_seconds,
            "facts published twice": _facts_twice(proxied),
        }
        return Report("replies_lost", figures, tuple(findings))


def _start(proxied: Proxied) -> None:
    stack = proxied.stack
    stack.start_store()
    stack.redis.start()
    stack.start_demo()
    both = {name: {"type": "http", "url": stack.demo_url, "callstream": {"trust": True}} for name in (DEMO, RARE)}
    for number, servers in enumerate(({DEMO: both[DEMO]}, both)):
        config = stack.folder / f"mcp-{number}.json"
        config.write_text(json.dumps({"mcpServers": servers}))
        stack.worker_env = {**stack.worker_env, "MCP_CONFIG": str(config)}
        stack.start_worker()


async def _calls(proxied: Proxied, operations: int) -> list[AnsweredCall]:
    """Calls, many at once, until that many commands have passed."""
    answered: list[AnsweredCall] = []
    numbers = itertools.count(1)
    store = proxied.stack.store
    async with contextlib.AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(engine_parts(proxied.engine.url, store.where))
            for _ in range(2 if store.kind == "postgres" else 1)
        ]
        for parts in engines:
            await wait_until(lambda parts=parts: len({server for server, _ in _tools(parts)}) == 2, 20, what="tools")
        tools = _tools(engines[0])
        callers = [await caller(engines[n % len(engines)], f"subject {n % 8}") for n in range(IN_FLIGHT)]
        before = _operations(proxied)
        faults = Faults(lose_share=SHARE, lose_first_of_each=True)
        enough = asyncio.Event()
        with proxied.engine.broken(faults), proxied.workers.broken(faults):
            async with asyncio.TaskGroup() as tasks:
                for each in callers:
                    tasks.create_task(_keep_calling(each, tools, numbers, enough, answered))
                await wait_until(lambda: _operations(proxied) - before > operations, LONGEST, what="the operations")
                enough.set()
    return answered


async def _keep_calling(
    caller: Caller,
    tools: dict[tuple[str, str], ToolEntry],
    numbers: "itertools.count[int]",
    enough: asyncio.Event,
    answered: list[AnsweredCall],
) -> None:
    while not enough.is_set():
        number = next(numbers)
        kind = next(kind for kind in KINDS if number % kind.every == 0)
        token = {} if kind.tool == "echo" else {"token": f"call {number}"}
        answered.append(
            await caller.call(tools[kind.server, kind.tool], {**kind.arguments, **token}, stop_at=kind.stop_at)
        )


def _tools(parts: Parts) -> dict[tuple[str, str], ToolEntry]:
    return {(tool.server, tool.tool): tool for tool in parts.catalog.tools()}


def _operations(proxied: Proxied) -> int:
    return proxied.engine.counts().commands + proxied.workers.counts().commands


def _settle(proxied: Proxied) -> None:
    """Wait until the workers have nothing left to do; what is left then is found by the judgement."""
    with Redis.from_url(proxied.stack.redis.url) as redis, contextlib.suppress(TimeoutError):
        wait_until_blocking(lambda: redis.xlen(Keys().requests) == 0, 20)


def _judge(proxied: Proxied, answered: Sequence[AnsweredCall], lost_deliveries: LostDeliveries) -> list[str]:
    """What does not hold."""
    log = proxied.stack.effect_log.read_text().splitlines()
    effects = Counter(effect["token"] for line in log if (effect := json.loads(line))["effect"] == "increment_counter")
    findings: list[str] = []
    if lost_deliveries.oldest_seconds > LOST_DELIVERY_SECONDS:
        findings.append(
            f"call {lost_deliveries.whose} was delivered and not begun for {lost_deliveries.oldest_seconds:.1f} s"
        )
    client: Any = Redis.from_url(proxied.stack.redis.url, decode_responses=True)
    with client:
        findings += [finding for each in answered for finding in _judge_call(client, each, effects)]
        keys = Keys()
        added = client.xinfo_stream(keys.requests)["entries-added"]
        entries = sum(bool(client.hget(keys.call(each.request.correlation_id), "entry")) for each in answered)
        if added != entries:
            findings.append(f"{added} requests were put on the stream for {entries} calls")
        if left := client.xlen(keys.requests):
            findings.append(f"{left} requests are left on the stream")
    return findings


def _judge_call(client: Any, answered: AnsweredCall, effects: Counter[str]) -> list[str]:
    """What does not hold about one call."""
    request, state, error = answered.request, answered.outcome.state, answered.outcome.error
    which = f"call {request.correlation_id} ({request.tool} {request.arguments})"
    replies = [
        decode_reply(fields["reply"].encode(), cipher=CLEAR) for _, fields in client.xrange(request.response_channel)
    ]
    ends = [reply.outcome.state for reply in replies if isinstance(reply, CallFinished)]
    recorded = client.hget(Keys().call(request.correlation_id), "state")
    findings: list[str] = []
    if len(ends) != 1:
        findings.append(f"{which} has {len(ends)} terminal replies")
    if {recorded, state} != set(ends):
        findings.append(f"{which}: replies say {ends}, the ledger {recorded}, and the caller received {state}: {error}")
    if not answered.stopped and state is not CallState.SUCCEEDED:
        findings.append(f"{which} is {state}: {error}")
    if request.tool == "increment_counter":
        count = effects[request.arguments["token"]]
        if count > 1 or count < (state is CallState.SUCCEEDED):
            findings.append(f"{which} is {state} with {count} effects")
    return findings


def _never_lost(lost: dict[str, int]) -> list[str]:
    return [
        f"no reply of {script.upper()} was lost: this run shows nothing about it"
        for script in OF_EVERY_CALL
        if script.upper() not in lost
    ]


def _script(name: str) -> bool:
    return name.lower() in SCRIPTS


def _facts_twice(proxied: Proxied) -> int:
    """Facts are published at least once: how many were published again, because the reply was lost."""
    client: Any = Redis.from_url(proxied.stack.redis.url)
    with client:
        ids = [fields[b"id"] for _, fields in client.xrange(Keys().route("events.analytics"))]
    return len(ids) - len(set(ids))
