"""One delivery, from START to COMPLETE."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Generator
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
from plugins_contract.messages import ExecutionClass, ToolCallRequested
from plugins_contract.outcomes import CallProgress, CallState, ToolOutcome
from plugins_mcp import decisions
from plugins_mcp.decisions import Cut, Finish, GiveBack, Leave, Retry
from plugins_mcp.mcp import CallResult, Flight
from plugins_mcp.ports import CallLedger, Leases, Observer, ToolServer, ToolServers
from plugins_mcp.running import Running, passed_on

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_STARTS = 3
"""How often a repeatable call is begun, over all workers. One that is not repeatable is begun once."""
WRITE_RETRY_SECONDS = 0.5
LAST_WORDS_SECONDS = 2.0
"""How long a worker that ends may take to say what became of a call that it cut off."""

_EXPIRED = ToolOutcome.failure(
    CallState.EXPIRED, ErrorCode.TIMEOUT, "no worker took it up before its deadline; it was not run"
)


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
        self._running: dict[str, Running] = {}
        self._starting: dict[str, list[Running]] = {}
        """Deliveries whose START is on its way. It may have gone through, and its caller may have stopped the call,
        before the answer is here."""

    def __len__(self) -> int:
        return len(self._running)

    def cancel(self, correlation_id: str) -> None:
        """End a call that runs here, on its caller's behalf; not of ours, nothing."""
        running = self._running.get(correlation_id)
        for each in (*([running] if running else ()), *self._starting.get(correlation_id, ())):
            each.cancel()

    def serves(self, request: ToolCallRequested) -> bool:
        """Whether its server is configured here."""
        return self._servers.get(request.server) is not None

    async def handle(self, delivery: Delivery) -> None:
        """See one delivery through. Whatever happens to the call is written before this returns, or left to others."""
        if not self.serves(delivery.request) and await self._passed_on(delivery):
            return
        asked_at = 0.0

        async def start() -> Started:
            nonlocal asked_at
            asked_at = time.monotonic()
            return await self._ledger.start(delivery, max_starts=MAX_STARTS, expired=_EXPIRED, lease_ms=self._lease_ms)

        with self._about_to_start(delivery.request.correlation_id) as running:
            started = await self._until_written(start)
        match started:
            case Run(fence, starts):
                await self._run(delivery, fence, starts, running, since=asked_at)
            case Abandoned(fence, starts):
                await self._complete(delivery, fence, decisions.unknown("the worker that ran it is gone"), starts)
            case CancelledBefore(fence, starts):
                # No start counts where it was given back each time, provably not sent.
                outcome = decisions.cancelled(delivery.request.execution_class, sent=starts > 0)
                await self._complete(delivery, fence, outcome, starts)
            case Exhausted(fence, starts):
                message = f"it was begun {starts} times, and each time its worker was lost"
                outcome = ToolOutcome.failure(CallState.DEAD, ErrorCode.UNKNOWN_ERROR, message)
                await self._complete(delivery, fence, outcome, starts, dead_reason=message)
            case NothingToDo(why):
                log.info("call %s is not run: %s", delivery.request.correlation_id, why)
            case NoLedger():
                message = (
                    "Redis lost what it knew of this call, so whether it ran before is not known; it is not run now"
                )
                once = delivery.request.execution_class is ExecutionClass.ONCE
                state = CallState.UNKNOWN if once else CallState.FAILED
                outcome = ToolOutcome.failure(state, ErrorCode.LOST, message)
                await self._complete(delivery, 0, outcome, 0, dead_reason=message)

    @contextlib.contextmanager
    def _about_to_start(self, correlation_id: str) -> Generator[Running]:
        """What runs when START says so; a cancel that comes before that is not missed."""
        running = Running()
        self._starting.setdefault(correlation_id, []).append(running)
        try:
            yield running
        finally:
            self._starting[correlation_id].remove(running)
            if not self._starting[correlation_id]:
                del self._starting[correlation_id]

    async def _passed_on(self, delivery: Delivery) -> bool:
        """Leave a call whose server is not configured here to others. If none has it, the deadline ends the call."""
        request = delivery.request
        log.debug("call %s: server %r is not configured here", request.correlation_id, request.server)
        return await self._until_written(lambda: self._ledger.pass_on(delivery, lease_ms=self._lease_ms))

    async def _run(self, delivery: Delivery, fence: int, starts: int, running: Running, *, since: float) -> None:
        request = delivery.request
        server = self._servers.get(request.server)
        if server is None:
            # Begun elsewhere, where it was in the configuration: another worker may still have it.
            await self._until_written(lambda: self._ledger.release(delivery, fence, lease_ms=self._lease_ms))
            return

        def lost() -> None:
            self._observer.lease_lost(request)
            running.lose()

        self._running[request.correlation_id] = running
        begun = time.monotonic()
        try:
            # The lease is held until the end is written, however long Redis is away.
            with self._leases.held(delivery, fence, since=since, on_cancel=running.cancel, on_lost=lost):
                decision = await self._execute(request, fence, server, running)
                async with asyncio.timeout(LAST_WORDS_SECONDS if running.worker_ends else None):
                    await self._end(delivery, fence, starts, decision, begun)
        except TimeoutError:
            log.warning("Redis does not answer: call %s is left to its lease", request.correlation_id)
        finally:
            del self._running[request.correlation_id]
        if running.worker_ends:
            raise asyncio.CancelledError

    async def _end(
        self, delivery: Delivery, fence: int, starts: int, decision: Finish | GiveBack | Leave, begun: float
    ) -> None:
        match decision:
            case Finish(outcome):
                took_ms = round((time.monotonic() - begun) * 1000)
                await self._complete(delivery, fence, msgspec.structs.replace(outcome, duration_ms=took_ms), starts)
            case GiveBack():
                await self._until_written(lambda: self._ledger.release(delivery, fence, lease_ms=self._lease_ms))
            case Leave():
                log.warning("call %s was cut off and is left to another worker", delivery.request.correlation_id)

    async def _execute(
        self, request: ToolCallRequested, fence: int, server: ToolServer, running: Running
    ) -> Finish | GiveBack | Leave:
        """Run the call, again where that is safe, and say what is to become of it."""
        retries = 0
        async with passed_on(self._ledger, request, fence) as on_progress:
            while True:
                result = await running.attempt(
                    lambda flight: self._call(request, server, on_progress, flight), name=f"tools/call {request.tool}"
                )
                if result is not None:
                    match decisions.decide(result, self._situation(request, retries, running)):
                        case Finish() as finish:
                            return finish
                        case Retry(after) if running.cut is None:
                            log.info("call %s is tried again in %.1f s: %s", request.correlation_id, after, result)
                            self._observer.retried(request)
                            retries += 1
                            await running.pause(after)
                        case Retry():
                            pass
                if running.cut is not None:
                    return decisions.cut_off(running.cut, request.execution_class, sent=running.may_have_run)

    def _situation(self, request: ToolCallRequested, retries: int, running: Running) -> decisions.Situation:
        return decisions.Situation(
            server=request.server,
            execution_class=request.execution_class,
            retries=retries,
            max_retries=self._max_retries,
            seconds_left=self._seconds_left(request),
            result_max_bytes=self._result_max_bytes,
            may_have_run=running.may_have_run,
        )

    async def _call(
        self,
        request: ToolCallRequested,
        server: ToolServer,
        on_progress: Callable[[CallProgress], None],
        flight: Flight,
    ) -> CallResult:
        return await server.call(
            request.tool,
            request.arguments,
            timeout_s=max(0.0, self._seconds_left(request)),
            on_progress=on_progress,
            meta={"traceparent": request.traceparent} if request.traceparent else None,
            flight=flight,
        )

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
            running = self._running.get(delivery.request.correlation_id)
            if running is None or running.cut is not Cut.LEASE:
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
