"""MCP servers are killed and stopped: in the middle of calls, before and after their effect, and before the call.

Each row of the crash table has a real server of its own, and a call of either class when it is struck. What becomes of
each call, and how often its tool ran by the server's own log, must be exactly what the table says.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from deploy.local.ports import free_port
from plugins_contract.catalog import ServerHeartbeat, ServerState
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ExecutionClass, ToolCallRequested
from plugins_contract.outcomes import CallState, ToolOutcome
from tests.chaos.mcp_peers import START_SECONDS, Child, Remote, runs
from tests.chaos.report import Report, Size
from tests.support.processes import answers, running
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until
from tests.support.working import Caller, calling

ROUNDS = {Size.SHORT: 1, Size.FULL: 20}
WORK_SECONDS = 2.0
"""How long a call that was struck would still have taken."""
LONG_MS, SHORT_MS = 60_000, 5_000
"""Deadlines: one that plays no part, and one that ends calls to a server that stands still."""
LONG_SECONDS = 4.0
"""How long such a call would take: on a busy machine its server is stopped late."""
END_SECONDS = 70.0
AT_ONCE = {Size.SHORT: 8, Size.FULL: 3}
"""Rows that are struck at the same time: many servers that start at once are slow."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a call, and how often its tool runs."""

    state: CallState
    code: ErrorCode | None
    runs: int

    def __str__(self) -> str:
        return f"{self.state}{f' {self.code}' if self.code else ''}, ran {self.runs} times"


@dataclass
class Round:
    """One call of either class. `peer` runs their tool."""

    caller: Caller
    peer: Child | Remote
    requests: dict[ExecutionClass, ToolCallRequested] = field(default_factory=dict[ExecutionClass, ToolCallRequested])

    async def ask(self, tool: str, deadline_ms: int = LONG_MS, **arguments: Any) -> None:
        """For a user of its own: after several calls in a row that were late, a tool is refused to its user."""
        for each in ExecutionClass:
            self.requests[each] = await self.caller.call(
                tool,
                server=self.peer.name,
                execution_class=each,
                expires_in_ms=deadline_ms,
                subject=f"user {time.monotonic_ns()}",
                token=f"{each} {time.monotonic_ns()}",
                **arguments,
            )

    async def running(self) -> None:
        """Wait until both run: they have taken effect, or have begun to work on it."""
        await wait_until(lambda: all(map(self.runs, self.requests)), START_SECONDS, what=f"calls on {self.peer.name}")

    def runs(self, execution_class: ExecutionClass) -> int:
        return runs(self.peer.log, self.requests[execution_class].arguments["token"])

    async def fates(self) -> dict[ExecutionClass, Fate]:
        outcomes = {each: await self.caller.outcome(request, END_SECONDS) for each, request in self.requests.items()}
        return {each: Fate(outcome.state, _code(outcome), self.runs(each)) for each, outcome in outcomes.items()}


async def after_the_effect(calls: Round) -> None:
    await calls.ask("increment_counter", answer_after_seconds=WORK_SECONDS)
    await calls.running()
    await calls.peer.kill()
    await calls.peer.start()


async def before_the_effect(calls: Round) -> None:
    await calls.ask("slow_job", seconds=WORK_SECONDS, steps=1)
    await calls.running()
    await calls.peer.kill()
    await calls.peer.start()


async def before_the_call(calls: Round) -> None:
    assert isinstance(calls.peer, Child)
    await calls.peer.replaced()
    await calls.ask("increment_counter")


async def for_good(calls: Round) -> None:
    calls.peer.close()
    await calls.ask("increment_counter")


async def stands_still_after_the_effect(calls: Round) -> None:
    assert isinstance(calls.peer, Remote)
    await calls.ask("increment_counter", SHORT_MS, answer_after_seconds=LONG_SECONDS)
    await calls.running()
    calls.peer.stop()


async def stands_still_before_the_call(calls: Round) -> None:
    assert isinstance(calls.peer, Remote)
    calls.peer.stop()
    await calls.ask("increment_counter", SHORT_MS)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the crash table: how a server is struck, and what must become of a call of either class."""

    name: str
    peer: type[Child] | type[Remote]
    strike: Callable[[Round], Awaitable[None]]
    once: Fate
    repeatable: Fate

    def expected(self, execution_class: ExecutionClass) -> Fate:
        return self.once if execution_class is ExecutionClass.ONCE else self.repeatable


def _ran(times: int) -> Fate:
    return Fate(CallState.SUCCEEDED, None, times)


def _unknown(code: ErrorCode, times: int) -> Fate:
    return Fate(CallState.UNKNOWN, code, times)


def _failed(code: ErrorCode, times: int) -> Fate:
    return Fate(CallState.FAILED, code, times)


OPEN, TIMEOUT, UNREACHED = ErrorCode.OUTCOME_UNKNOWN, ErrorCode.TIMEOUT, ErrorCode.NETWORK_ERROR
ROWS = (
    Row("child killed after the effect", Child, after_the_effect, _unknown(OPEN, 1), _ran(2)),
    Row("child killed before the effect", Child, before_the_effect, _unknown(OPEN, 1), _ran(2)),
    Row("child killed before the call", Child, before_the_call, _ran(1), _ran(1)),
    Row("HTTP server killed after the effect", Remote, after_the_effect, _unknown(OPEN, 1), _ran(2)),
    Row("HTTP server killed before the effect", Remote, before_the_effect, _unknown(OPEN, 1), _ran(2)),
    Row("HTTP server gone before the call", Remote, for_good, _failed(UNREACHED, 0), _failed(UNREACHED, 0)),
    Row("HTTP server hangs after the effect", Remote, stands_still_after_the_effect, _unknown(TIMEOUT, 1),
        _failed(TIMEOUT, 1)),
    Row("HTTP server hangs before the call", Remote, stands_still_before_the_call, _unknown(TIMEOUT, 0),
        _failed(TIMEOUT, 0)),
)  # fmt: skip


def run(size: Size, folder: Path) -> Report:
    """Strike the server of each row, all rows at the same time, round after round."""
    return asyncio.run(_run(size, folder))


async def _run(size: Size, folder: Path) -> Report:
    peers = [row.peer(folder, f"row{number}") for number, row in enumerate(ROWS)]
    async with _worker(folder, peers) as caller, asyncio.TaskGroup() as rows:
        room = asyncio.Semaphore(AT_ONCE[size])
        tasks = [
            rows.create_task(_rounds(row, peer, caller, ROUNDS[size], room))
            for row, peer in zip(ROWS, peers, strict=True)
        ]
    seen = {row: task.result() for row, task in zip(ROWS, tasks, strict=True)}
    figures: dict[str, float | int | str] = {"rounds of each row": ROUNDS[size]}
    findings: list[str] = []
    for row, rounds in seen.items():
        for execution_class in ExecutionClass:
            fates = Counter(fates[execution_class] for fates in rounds)
            summary = "; ".join(f"{fate} ({count} of {len(rounds)})" for fate, count in fates.items())
            figures[f"{row.name}, {execution_class}"] = summary
            if set(fates) != {row.expected(execution_class)}:
                findings.append(f"{row.name}, {execution_class}: {summary}, not {row.expected(execution_class)}")
    return Report("mcp_killed", figures, tuple(findings))


async def _rounds(
    row: Row, peer: Child | Remote, caller: Caller, rounds: int, room: asyncio.Semaphore
) -> list[dict[ExecutionClass, Fate]]:
    fates: list[dict[ExecutionClass, Fate]] = []
    for _ in range(rounds):
        async with room:
            await peer.start()
            await _well(caller, peer)
            calls = Round(caller, peer)
            await row.strike(calls)
            fates.append(await calls.fates())
    return fates


async def _well(caller: Caller, peer: Child | Remote) -> None:
    """Wait until the worker has the server again, and it has answered a call: its circuit is closed."""
    await wait_until(lambda: _ready(caller, peer.name), START_SECONDS, what=f"readiness of {peer.name}")
    await wait_until(lambda: _answers(caller, peer.name), END_SECONDS, what=f"an answer of {peer.name}")


async def _answers(caller: Caller, server: str) -> bool:
    request = await caller.call("add", server=server, a=1, b=2)
    return (await caller.outcome(request, END_SECONDS)).state is CallState.SUCCEEDED


async def _ready(caller: Caller, server: str) -> bool:
    fields = await caller.redis.hgetall(caller.keys.catalog_of(server))
    beats = [msgspec.json.decode(value, type=ServerHeartbeat) for key, value in fields.items() if key[:7] == b"worker:"]
    return any(beat.state is ServerState.READY for beat in beats)


@asynccontextmanager
async def _worker(folder: Path, peers: Sequence[Child | Remote]) -> AsyncGenerator[Caller]:
    """Redis, the servers, and one worker that has them all."""
    config, port = folder / "mcp.json", free_port()
    config.write_text(json.dumps({"mcpServers": {peer.name: peer.entry() for peer in peers}}))
    redis = LocalServer(embedded_binary(), folder)
    async with AsyncExitStack() as stack:
        stack.callback(redis.stop)
        await asyncio.to_thread(redis.start)
        for peer in peers:
            stack.callback(peer.close)
        await asyncio.gather(*(peer.start() for peer in peers))
        env = {
            "REDIS_URL": redis.url,
            "MCP_CONFIG": str(config),
            "HEALTH_PORT": str(port),
            "MCP_MAX_RETRIES": "6",
            "DRAIN_SECONDS": "0",
            "WORKER_CONCURRENCY": str(2 * len(peers)),
        }
        ready = f"http://127.0.0.1:{port}/readyz"
        argv = [sys.executable, "-m", "tests.support.quick_worker", "--patient"]
        worker = await stack.enter_async_context(running(argv, env=env, ready_url=ready, timeout=START_SECONDS))
        await wait_until(lambda: worker.ready(lambda: answers(ready)))
        yield await stack.enter_async_context(calling(redis.url))


def _code(outcome: ToolOutcome) -> ErrorCode | None:
    return outcome.error.code if outcome.error else None
