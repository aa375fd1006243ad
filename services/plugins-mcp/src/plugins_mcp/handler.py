"""Processes one delivery, from START to COMPLETE."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from callstream_runtime.clock import Clock
from callstream_runtime.long_texts import reading
from callstream_runtime.redis_errors import RedisUnavailable
from callstream_runtime.watched_file import WatchedFile
from plugins_contract.errors import ErrorCode
from plugins_contract.ledger import Delivery
from plugins_contract.ledger.replies import NothingToDo, NotYet, Run, Stale, Started
from plugins_contract.messages import ExecutionClass, ToolCallRequested, is_approved
from plugins_contract.outcomes import CallStarted, CallState, ToolOutcome
from plugins_contract.rights import Rights
from plugins_mcp import decisions
from plugins_mcp.decisions import Finish, Interruption, LeaveToLease, Release, Retry
from plugins_mcp.errors import ServerChangedError
from plugins_mcp.held_calls import HeldCalls
from plugins_mcp.mcp import Answered, CallResult, Dialogue, NotSent, SendState, TimedOut, size_of
from plugins_mcp.placement import Placement
from plugins_mcp.ports import CallLedger, Leases, Observer, ResultSender
from plugins_mcp.running_call import CallReports, RunningCall, RunningCalls, StillOpen

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_STARTS = 3
"""How often a repeatable call is started, over all workers. Other calls are started once."""
WRITE_RETRY_SECONDS = 0.5
START_AGAIN_SECONDS = 0.25
"""How soon START is asked again while workers report at another server of Redis."""
SHUTDOWN_WRITE_SECONDS = 2.0
"""How long a worker that shuts down may take to write the outcome of a call that it cancelled."""


class CallHandler:
    """Runs tool calls. Its only state is the calls that run now."""

    def __init__(
        self,
        ledger: CallLedger,
        placement: Placement,
        leases: Leases,
        clock: Clock,
        observer: Observer,
        held: HeldCalls,
        *,
        max_retries: int,
        result_max_bytes: int,
        lease_ms: int,
        rights: WatchedFile[Rights] | None = None,
        large: ResultSender | None = None,
        shutdown_write_seconds: float = SHUTDOWN_WRITE_SECONDS,
    ) -> None:
        """With `rights` a call is run only if they allow it, whatever its producer has checked."""
        self._ledger = ledger
        self._placement = placement
        self._leases = leases
        self._clock = clock
        self._observer = observer
        self._max_retries, self._result_max_bytes, self._lease_ms = max_retries, result_max_bytes, lease_ms
        self._rights = rights
        self._large = large
        self._held = held
        self._shutdown_write_seconds = shutdown_write_seconds
        self._running = RunningCalls()

    def __len__(self) -> int:
        return len(self._running)

    def cancel(self, correlation_id: str) -> None:
        """Cancel a call for its caller, whether it runs here or is started here within RECENT_SECONDS."""
        self._running.cancel(correlation_id)
        self._held.cancel(correlation_id)

    def serves(self, request: ToolCallRequested) -> bool:
        """Whether this worker has the call's server."""
        return self._placement.serves(request)

    async def handle(self, delivery: Delivery) -> None:
        """Process one delivery. On return its outcome is written, or the call is left to other workers."""
        request = delivery.request
        with self._observer.processing(request):
            if self._placement.any_worker_runs(request) or not await self._left_to_others(delivery):
                while not await self._start(delivery):
                    pass  # Redis has changed its server

    async def _start(self, delivery: Delivery) -> bool:
        """START the call, and do what it says. False to ask again: Redis has changed its server."""
        once = delivery.request.execution_class is ExecutionClass.ONCE
        expired = decisions.EXPIRED
        if not self.serves(delivery.request):
            expired = decisions.expired(f"no running worker has the MCP server {delivery.request.server!r}")
        redis = await self._leases.reported() if once else None
        asked_at = 0.0

        async def start() -> Started:
            nonlocal asked_at
            asked_at = time.monotonic()
            return await self._ledger.start(
                delivery,
                max_starts=MAX_STARTS,
                expired=expired,
                lease_ms=self._lease_ms,
                reported_at=redis or "",
            )

        match await self._until_written(start):
            case NotYet():
                await asyncio.sleep(START_AGAIN_SECONDS)
                return False
            case Run(fence, starts):
                return await self._run(delivery, fence, starts, since=asked_at, redis=redis)
            case NothingToDo(why):
                self._observer.not_run(delivery.request, why)
            case ended:
                fence, starts, outcome, dead_reason = decisions.without_run(ended, delivery.request.execution_class)
                await self._complete(delivery, fence, outcome, starts, dead_reason=dead_reason)
        return True

    async def _left_to_others(self, delivery: Delivery) -> bool:
        """Leave a call to workers that have its server, or to the one that has its session.

        False when START is to decide. If no worker has the server, the call expires.
        """

        async def leave() -> bool:
            if (other := await self._placement.elsewhere(delivery.request)) is None:
                return False
            return await self._ledger.pass_on(delivery, to=other.pool, lease_ms=self._lease_ms)

        return await self._until_written(leave)

    async def _run(self, delivery: Delivery, fence: int, starts: int, *, since: float, redis: str | None) -> bool:
        """Run a call that was started at this server of Redis. False, and nothing is sent, when that has changed."""
        request = delivery.request
        if await self._until_written(lambda: self._placement.elsewhere(request)):
            # It was started by a worker that has this server, or its session: return it to the group.
            await self._until_written(lambda: self._ledger.release(delivery, fence, lease_ms=self._lease_ms))
            return True

        def on_lost() -> None:
            self._observer.lease_lost(request)
            running.lose_lease()

        running = self._running.begin(request.correlation_id)
        started_at = time.monotonic()
        try:
            # The lease is held until the outcome is written, however long an outage of Redis lasts.
            with self._leases.held(
                delivery, fence, since=since, on_cancel=running.cancel, on_lost=on_lost, started_at=redis
            ):
                queued_ms = max(0, self._clock.now_ms() - delivery.enqueued_at)
                self._observer.started(request, starts, queued_ms)
                decision = await self._execute(delivery, fence, starts, running)
                stopping = running.worker_stopping
                async with asyncio.timeout(self._shutdown_write_seconds if stopping else None):
                    await self._write_decision(delivery, fence, starts, decision, started_at)
        except ServerChangedError:
            return False
        except TimeoutError:
            log.warning("Redis is not available: call %s is taken over when its lease expires", request.correlation_id)
        finally:
            del self._running[request.correlation_id]
        if running.worker_stopping:
            raise asyncio.CancelledError
        return True

    async def _write_decision(
        self, delivery: Delivery, fence: int, starts: int, decision: Finish | Release | LeaveToLease, started_at: float
    ) -> None:
        match decision:
            case Finish(outcome):
                took_ms = round((time.monotonic() - started_at) * 1000)
                outcome = msgspec.structs.replace(outcome, duration_ms=took_ms, attempts=starts)
                outcome = await self._large.sent(delivery.request, fence, outcome) if self._large else outcome
                await self._complete(delivery, fence, outcome, starts)
            case Release():
                await self._until_written(lambda: self._ledger.release(delivery, fence, lease_ms=self._lease_ms))
            case LeaveToLease():
                log.warning("call %s was cancelled here and is left to another worker", delivery.request.correlation_id)

    async def _execute(
        self, delivery: Delivery, fence: int, starts: int, running: RunningCall
    ) -> Finish | Release | LeaveToLease:
        """Run the call while its engine gets its reports, and decide what happens to it."""
        request = delivery.request
        rights = self._rights.content.access(request.subject, request.roles) if self._rights is not None else None
        if refusal := decisions.refusal(request, rights):
            message = f"{refusal}; it was not run"
            return Finish(ToolOutcome.failure(CallState.FAILED, ErrorCode.PERMISSION_DENIED, message))
        reports = CallReports(
            lambda report: self._ledger.progress(request, fence, report),
            None if delivery.adopted else CallStarted(starts),  # START has published that of an adopted call
            name=f"reports of {request.correlation_id}",
        )
        try:
            return await self._retried(delivery, running, reports)
        finally:
            await reports.close()

    async def _retried(
        self, delivery: Delivery, running: RunningCall, reports: CallReports
    ) -> Finish | Release | LeaveToLease:
        """Run the call, retry it where that is safe, and decide what happens to it."""
        request, retries, call = delivery.request, 0, partial(self._call, delivery, reports)
        while True:
            dialogue = Dialogue.of(request, reports.add, self._held.visited) if request.may_ask else None
            result = await running.attempt(call, f"tools/call {request.tool}", dialogue)
            if isinstance(result, StillOpen):
                result = self._held.hold(request, result)
            if result is not None:
                size = size_of(result.result) if isinstance(result, Answered) else 0
                situation = self._situation(request, retries, running)
                match await reading(size, decisions.conclude, result, situation):
                    case Finish() as finish:
                        return finish
                    case Retry(after) if running.interruption is None:
                        self._observer.retried(request, after, str(result))
                        retries += 1
                        await running.pause(after)
                    case Retry():
                        pass
            if (by := running.interruption) is not None:
                return decisions.decide_interrupted(by, request.execution_class, sent=running.may_have_run)

    def _situation(self, request: ToolCallRequested, retries: int, running: RunningCall) -> decisions.Situation:
        return decisions.Situation(
            server=request.server,
            execution_class=request.execution_class,
            retries=retries,
            max_retries=self._max_retries,
            seconds_left=self._seconds_left(request),
            result_max_bytes=self._result_max_bytes,
            may_have_run=running.may_have_run,
            resumes=bool(request.next_round),
            reads=bool(request.kind),
            for_last_release=request.approved is msgspec.UNSET and not (request.may_ask or request.kind),
        )

    async def _call(self, delivery: Delivery, reports: CallReports, send_state: SendState) -> CallResult:
        request = delivery.request
        if (seconds_left := self._seconds_left(request)) <= 0:
            return TimedOut(sent=False)
        send_state.next_round, send_state.kind = request.next_round or None, request.kind or None
        if send_state.next_round and send_state.next_round.holder:
            return await self._held.go_on(request, send_state, reports.add, seconds_left)
        if (server := self._placement.server_of(request)) is None:
            return NotSent(f"the MCP server {request.server!r} was taken out of the configuration")
        return await server.call(
            request.tool,
            request.arguments,
            subject=request.subject,
            approved=is_approved(request) or bool(request.kind),  # people approve calls of tools
            timeout_s=seconds_left,
            granted_s=(request.deadline - delivery.enqueued_at) / 1000,
            on_begin=reports.begin,
            on_progress=send_state.dialogue.progressed if send_state.dialogue else reports.add,
            meta={"traceparent": request.traceparent} if request.traceparent else None,
            send_state=send_state,
        )

    def _seconds_left(self, request: ToolCallRequested) -> float:
        return (request.deadline - self._clock.now_ms()) / 1000

    async def _complete(
        self, delivery: Delivery, fence: int, outcome: ToolOutcome, starts: int, *, dead_reason: str = ""
    ) -> None:
        request, outcome = delivery.request, msgspec.structs.replace(outcome, attempts=starts)
        answer = await self._until_written(
            lambda: self._ledger.complete(delivery, fence, outcome, dead_reason=dead_reason)
        )
        if dead_reason:
            self._observer.dead_letter("call")
        if isinstance(answer, Stale):
            log.warning("call %s was taken over by another worker: its result is discarded", request.correlation_id)
            self._held.cancel(request.correlation_id)
            running = self._running.get(request.correlation_id)
            if running is None or running.interruption is not Interruption.LEASE_LOST:
                self._observer.lease_lost(request)
        else:
            self._observer.finished(request, outcome)

    async def _until_written(self, write: Callable[[], Awaitable[T]]) -> T:
        """Call `write`, and repeat it during an outage of Redis. The ledger's scripts are idempotent."""
        while True:
            try:
                return await write()
            except RedisUnavailable as error:
                log.warning("Redis is not available (%s): retrying", error)
            await asyncio.sleep(WRITE_RETRY_SECONDS)
