"""One delivery, from START to COMPLETE."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from plugins_contract.clock import Clock
from plugins_contract.connections import describe_outage, is_outage
from plugins_contract.errors import ErrorCode
from plugins_contract.ledger import Delivery
from plugins_contract.ledger.replies import (
    Abandoned,
    CancelledBefore,
    Exhausted,
    NoLedger,
    NothingToDo,
    Run,
    Stale,
    Started,
)
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallProgress, CallState, ToolOutcome
from plugins_mcp import decisions
from plugins_mcp.mcp import CallResult
from plugins_mcp.ports import CallLedger, Leases, Observer, ToolServer, ToolServers
from plugins_mcp.progress import passed_on

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_STARTS = 3
"""How often a repeatable call is begun, over all workers. One that is not repeatable is begun once."""
WRITE_RETRY_SECONDS = 0.5
CANCEL_SECONDS = 2.0
"""How long a call that is cut off may take to tell its MCP server so."""

_EXPIRED = ToolOutcome.failure(
    CallState.EXPIRED, ErrorCode.TIMEOUT, "no worker took it up before its deadline; it was not run"
)


@dataclass(slots=True)
class _Running:
    """A call that this worker runs. `work` is the MCP call, once it is under way."""

    work: asyncio.Task[CallResult] | None = None
    cancelled: bool = False
    lost: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self) -> None:
        self.cancelled = True
        self._end()

    def lose(self) -> None:
        self.lost = True
        self._end()

    def _end(self) -> None:
        self.gone.set()
        if self.work is not None:
            self.work.cancel()


class CallHandler:
    """Runs tool calls. Holds no state but what runs now."""

    def __init__(
        self,
        ledger: CallLedger,
        servers: ToolServers,
        leases: Leases,
        clock: Clock,
        observer: Observer,
        *,
        max_retries: int,
        result_max_bytes: int,
        lease_ms: int,
    ) -> None:
        self._ledger = ledger
        self._servers = servers
        self._leases = leases
        self._clock = clock
        self._observer = observer
        self._max_retries = max_retries
        self._result_max_bytes = result_max_bytes
        self._lease_ms = lease_ms
        self._running: dict[str, _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def cancel(self, correlation_id: str) -> None:
        """End a call that runs here, on its caller's behalf; not of ours, nothing."""
        running = self._running.get(correlation_id)
        if running is not None:
            running.cancel()

    async def handle(self, delivery: Delivery) -> None:
        """See one delivery through. Whatever happens to the call is written before this returns, or left to others."""
        asked_at = 0.0

        async def start() -> Started:
            nonlocal asked_at
            asked_at = time.monotonic()
            return await self._ledger.start(delivery, max_starts=MAX_STARTS, expired=_EXPIRED)

        match await self._until_written(start):
            case Run(fence, starts):
                await self._run(delivery, fence, starts, since=asked_at)
            case Abandoned(fence, starts):
                await self._complete(delivery, fence, decisions.unknown("the worker that ran it is gone"), starts)
            case CancelledBefore(fence, starts):
                await self._complete(delivery, fence, decisions.cancelled(delivery.request.execution_class), starts)
            case Exhausted(fence, starts):
                message = f"it was begun {starts} times, and each time its worker was lost"
                outcome = ToolOutcome.failure(CallState.DEAD, ErrorCode.UNKNOWN_ERROR, message)
                await self._complete(delivery, fence, outcome, starts, dead_reason=message)
            case NothingToDo(why):
                log.info("call %s is not run: %s", delivery.request.correlation_id, why)
            case NoLedger():
                message = "its ledger entry is gone, so whether it ran before is not known; it was not run"
                outcome = ToolOutcome.failure(CallState.FAILED, ErrorCode.LOST, message)
                await self._complete(delivery, 0, outcome, 0, dead_reason=message)

    async def _run(self, delivery: Delivery, fence: int, starts: int, *, since: float) -> None:
        request = delivery.request
        server = self._servers.get(request.server)
        if server is None:
            # Another worker may have it in its configuration; if none has, the deadline ends the call.
            log.warning("call %s: server %r is not configured here", request.correlation_id, request.server)
            await self._until_written(lambda: self._ledger.release(delivery, fence, lease_ms=self._lease_ms))
            return
        running = _Running()
        self._running[request.correlation_id] = running
        begun = time.monotonic()
        try:
            with self._leases.held(delivery, fence, since=since, on_cancel=running.cancel, on_lost=running.lose):
                outcome = await self._execute(request, fence, server, running)
                if outcome is None:
                    self._observer.lease_lost(request)
                    return
                outcome = msgspec.structs.replace(outcome, duration_ms=round((time.monotonic() - begun) * 1000))
                # The lease is held until the outcome is written, however long Redis is away.
                await self._complete(delivery, fence, outcome, starts)
        finally:
            del self._running[request.correlation_id]

    async def _execute(
        self, request: ToolCallRequested, fence: int, server: ToolServer, running: _Running
    ) -> ToolOutcome | None:
        """The outcome of the call; None when it is not ours any more."""
        retries = 0
        async with passed_on(self._ledger, request, fence) as on_progress:
            while True:
                result = await self._call(request, server, running, on_progress)
                if running.lost:
                    return None
                if result is None:
                    return decisions.cancelled(request.execution_class)
                now = decisions.Situation(
                    execution_class=request.execution_class,
                    retries=retries,
                    max_retries=self._max_retries,
                    seconds_left=self._seconds_left(request),
                    result_max_bytes=self._result_max_bytes,
                )
                match decisions.decide(result, now):
                    case decisions.Finish(outcome):
                        return outcome
                    case decisions.Retry(after):
                        log.info("call %s is tried again in %.1f s: %s", request.correlation_id, after, result)
                        self._observer.retried(request)
                        retries += 1
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(after):
                                await running.gone.wait()
                        if running.gone.is_set():
                            return None if running.lost else _cancelled_before_it_ran()

    async def _call(
        self,
        request: ToolCallRequested,
        server: ToolServer,
        running: _Running,
        on_progress: Callable[[CallProgress], None],
    ) -> CallResult | None:
        """Call the tool once. None when the call was ended meanwhile, by its caller or by the loss of the lease."""
        meta = {"traceparent": request.traceparent} if request.traceparent else None
        running.work = asyncio.create_task(
            server.call(
                request.tool,
                request.arguments,
                timeout_s=max(0.0, self._seconds_left(request)),
                on_progress=on_progress,
                meta=meta,
            ),
            name=f"tools/call {request.tool}",
        )
        try:
            if running.gone.is_set():
                running.work.cancel()
            await asyncio.wait([running.work])
            return None if running.work.cancelled() else running.work.result()
        finally:
            if not running.work.done():  # this worker is ending: let the cancellation reach the server
                running.work.cancel()
                await asyncio.wait([running.work], timeout=CANCEL_SECONDS)

    def _seconds_left(self, request: ToolCallRequested) -> float:
        return (request.deadline - self._clock.now_ms()) / 1000

    async def _complete(
        self, delivery: Delivery, fence: int, outcome: ToolOutcome, starts: int, *, dead_reason: str = ""
    ) -> None:
        outcome = msgspec.structs.replace(outcome, attempts=starts)
        answer = await self._until_written(
            lambda: self._ledger.complete(delivery, fence, outcome, dead_reason=dead_reason)
        )
        if isinstance(answer, Stale):
            log.warning(
                "call %s belongs to another worker by now: its result is dropped", delivery.request.correlation_id
            )
            self._observer.lease_lost(delivery.request)
        else:
            self._observer.finished(delivery.request, outcome)

    async def _until_written(self, write: Callable[[], Awaitable[T]]) -> T:
        """Do `write`, again and again while Redis is away: the scripts take a repetition for what it is."""
        while True:
            try:
                return await write()
            except Exception as error:
                if not is_outage(error):
                    raise
                log.warning("Redis does not answer (%s): trying again", describe_outage(error))
            await asyncio.sleep(WRITE_RETRY_SECONDS)


def _cancelled_before_it_ran() -> ToolOutcome:
    return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "it was cancelled before it ran")
