"""A handler of deliveries among in-process fakes of the ledger, of the leases and of an MCP server."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import anyio
import msgspec
from mcp.types import CallToolResult, TextContent

from callstream_runtime.clock import Clock
from callstream_runtime.redis_errors import RedisUnavailable
from callstream_runtime.watched_file import WatchedFile
from plugins_contract.keys import Keys
from plugins_contract.ledger import Delivery
from plugins_contract.ledger.replies import Completed, Duplicate, NotYet, Run, Stale, Started
from plugins_contract.messages import ExecutionClass, ToolCallRequested
from plugins_contract.outcomes import CallProgress, CallStarted, CallState, ToolOutcome
from plugins_contract.rights import Rights
from plugins_mcp.errors import ServerChangedError
from plugins_mcp.handler import SHUTDOWN_WRITE_SECONDS, CallHandler
from plugins_mcp.held_calls import HeldCalls
from plugins_mcp.mcp import Answered, CallResult, SendState
from plugins_mcp.placement import Placement
from plugins_mcp.ports import CallLedger, Leases, Observer, PoolFinder, Sessions, ToolServer, ToolServers
from tests.support.requests import requested
from tests.support.waiting import wait_until

DONE = Answered(CallToolResult(content=[TextContent(type="text", text="done")]))
Behaviour = Callable[[Callable[[CallProgress], None]], Awaitable[CallResult]]


@dataclass
class LedgerTwin(CallLedger):
    """Answers START as configured, and keeps what was written."""

    started: Started = field(default_factory=lambda: Run(7, 1))
    completes_as: Completed | Stale | Duplicate = field(default_factory=Completed)
    not_yet: int = 0
    """So many STARTs must wait."""
    reported_at: list[str] = field(default_factory=list[str])
    away: int = 0
    """So many commands find no Redis."""
    passes: bool = True
    """Whether the call has not begun, so that it can be left to others."""
    passed: int = 0
    tried: int = 0
    starts: int = 0
    outcomes: list[tuple[int, ToolOutcome, str]] = field(default_factory=list[tuple[int, ToolOutcome, str]])
    released: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    reported: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """When progress was reported, in monotonic seconds, and which."""
    notices: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """The calls that were reported as started, and their attempts."""
    ended: set[str] = field(default_factory=set[str])

    def _reach(self) -> None:
        self.tried += 1
        if self.away:
            self.away -= 1
            raise RedisUnavailable("away")

    async def pass_on(self, delivery: Delivery, *, to: str | None, lease_ms: int) -> bool:
        self._reach()
        assert lease_ms == 10_000
        self.passed += self.passes
        return self.passes

    async def start(
        self, delivery: Delivery, *, max_starts: int, expired: ToolOutcome, lease_ms: int, reported_at: str
    ) -> Started:
        self._reach()
        assert expired.state is CallState.EXPIRED
        self.starts += 1
        self.reported_at.append(reported_at)
        if self.starts <= self.not_yet:
            return NotYet()
        return self.started

    async def progress(self, request: ToolCallRequested, fence: int, report: CallStarted | CallProgress) -> bool:
        self._reach()
        match report:
            case CallStarted(attempt):
                self.notices.append((request.correlation_id, attempt))
            case CallProgress(progress):
                self.reported.append((time.monotonic(), progress))
        assert request.correlation_id not in self.ended
        return True

    async def complete(
        self, delivery: Delivery, fence: int, outcome: ToolOutcome, *, dead_reason: str = ""
    ) -> Completed | Stale | Duplicate:
        self._reach()
        self.ended.add(delivery.request.correlation_id)
        self.outcomes.append((fence, outcome, dead_reason))
        return self.completes_as

    async def release(self, delivery: Delivery, fence: int, *, lease_ms: int) -> Completed | Stale:
        self._reach()
        self.released.append((fence, lease_ms))
        return Completed()


@dataclass
class LeasesTwin(Leases):
    """Holds one lease, which a test may cancel or take away."""

    holding: bool = False
    cancel: Callable[[], None] = lambda: None
    lose: Callable[[], None] = lambda: None
    servers: list[str] = field(default_factory=lambda: ["redis"])
    """The servers of Redis at which this worker reports, one after the other."""

    async def reported(self) -> str:
        return self.servers[0]

    @contextlib.contextmanager
    def held(
        self,
        delivery: Delivery,
        fence: int,
        *,
        since: float,
        on_cancel: Callable[[], None],
        on_lost: Callable[[], None],
        started_at: str | None = None,
    ) -> Generator[None]:
        if len(self.servers) > 1:
            self.servers.pop(0)
        if started_at not in (None, self.servers[0]):
            raise ServerChangedError
        assert 0 <= time.monotonic() - since < 5
        self.holding, self.cancel, self.lose = True, on_cancel, on_lost
        try:
            yield
        finally:
            self.holding = False


@dataclass
class ServerTwin(ToolServer):
    """An MCP server: each call takes the next behaviour, and the last one again and again."""

    sends: bool = True
    """Whether some of a call leaves."""
    behaviours: list[Behaviour] = field(default_factory=list[Behaviour])
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    cancelled: int = 0
    granted_s: float | None = None
    has_slots: bool = True

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        subject: str,
        approved: bool,
        timeout_s: float,
        granted_s: float | None = None,
        on_begin: Callable[[], None] = lambda: None,
        on_progress: Callable[[CallProgress], None] = lambda progress: None,
        meta: dict[str, Any] | None = None,
        send_state: SendState | None = None,
    ) -> CallResult:
        assert send_state is not None
        send_state.sent = self.sends
        self.calls.append({"tool": tool, "arguments": arguments, "timeout_s": timeout_s, "meta": meta})
        self.granted_s = granted_s
        if self.has_slots:
            on_begin()
        behaviour = self.behaviours[min(len(self.calls), len(self.behaviours)) - 1]
        try:
            return await behaviour(on_progress)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@dataclass
class Facts(Observer):
    ended: list[CallState] = field(default_factory=list[CallState])
    retries: int = 0
    lost: int = 0

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome) -> None:
        self.ended.append(outcome.state)

    def retried(self, request: ToolCallRequested, after_seconds: float, why: str) -> None:
        self.retries += 1

    def lease_lost(self, request: ToolCallRequested) -> None:
        self.lost += 1


class StoppedClock(Clock):
    def now_ms(self) -> int:
        return 1_000_000


def gives(result: CallResult) -> Behaviour:
    async def behave(_: Callable[[CallProgress], None]) -> CallResult:
        return result

    return behave


async def hangs(_: Callable[[CallProgress], None]) -> CallResult:
    await asyncio.Event().wait()
    raise AssertionError


@dataclass
class Bench(ToolServers, PoolFinder, Sessions):
    """A handler among its fakes."""

    ledger: LedgerTwin = field(default_factory=LedgerTwin)
    leases: LeasesTwin = field(default_factory=LeasesTwin)
    server: ServerTwin = field(default_factory=ServerTwin)
    facts: Facts = field(default_factory=Facts)
    real: ToolServer | None = None
    """Takes the place of the twin."""
    max_retries: int = 2
    rights: WatchedFile[Rights] | None = None
    shutdown_write_seconds: float = SHUTDOWN_WRITE_SECONDS
    alive: set[str] = field(default_factory=set[str])
    """The pools of one worker whose workers are running."""
    handler: CallHandler = field(init=False)

    def __post_init__(self) -> None:
        self.handler = CallHandler(
            self.ledger, Placement(self, self, self), self.leases, StoppedClock(), self.facts,
            HeldCalls(cast("Any", None), Keys(), "", again_seconds=1), max_retries=self.max_retries,
            result_max_bytes=4096, lease_ms=10_000, rights=self.rights,
            shutdown_write_seconds=self.shutdown_write_seconds,
        )  # fmt: skip

    async def lives(self, own: str) -> bool:
        return own in self.alive

    async def find(self, server: str, version: int) -> str | None:
        return None

    async def elsewhere(self, request: ToolCallRequested) -> str | None:
        return None

    def server_for(self, request: ToolCallRequested) -> ToolServer:
        return self.server

    def get(self, server: str) -> ToolServer | None:
        return self.real or self.server if server == "demo" else None

    async def handle(
        self,
        *behaviours: Behaviour,
        execution_class: ExecutionClass = ExecutionClass.ONCE,
        server: str = "demo",
        **fields: Any,
    ) -> None:
        self.server.behaviours = list(behaviours)
        made = delivery(execution_class, server)
        await self.handler.handle(replace(made, request=msgspec.structs.replace(made.request, **fields)))

    @asynccontextmanager
    async def handling(
        self, *behaviours: Behaviour, execution_class: ExecutionClass = ExecutionClass.ONCE
    ) -> AsyncGenerator[None]:
        """Enter once the lease is held, leave when the handler is through."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: self.handle(*behaviours, execution_class=execution_class))
            await wait_until(lambda: self.leases.holding and self.server.calls)
            yield

    @property
    def outcome(self) -> ToolOutcome:
        ((_, outcome, _),) = self.ledger.outcomes
        return outcome


def delivery(execution_class: ExecutionClass = ExecutionClass.ONCE, server: str = "demo") -> Delivery:
    request = requested(server=server, execution_class=execution_class, traceparent="00-1-2-01")
    return Delivery(request, "990000-1", "me", "token")
