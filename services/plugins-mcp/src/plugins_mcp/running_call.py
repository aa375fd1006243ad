"""A call that runs in this worker: its interruption by several causes, and its progress reports to the engine."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.ledger import RECENT_SECONDS
from plugins_contract.outcomes import CallProgress, CallStarted
from plugins_mcp.decisions import Interruption
from plugins_mcp.mcp import Ambiguous, CallResult, Dialogue, SendState

log = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0
"""How long the cancellation of an interrupted call may take to reach its MCP server."""


@dataclass(frozen=True, slots=True, eq=False)
class StillOpen:
    """A call whose server has asked in the middle of it."""

    work: asyncio.Task[CallResult]
    dialogue: Dialogue


@dataclass(slots=True, eq=False)
class RunningCall:
    """The state of one running call.

    `interruption`: the first cause that interrupted it. `may_have_run`: an attempt was sent and its outcome is unknown.
    `worker_stopping`: the worker shuts down, so the outcome must be written soon.
    """

    interruption: Interruption | None = None
    may_have_run: bool = False
    worker_stopping: bool = False
    _work: asyncio.Task[CallResult] | None = None
    _interrupted: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self) -> None:
        """The caller cancelled the call."""
        self.interrupt(Interruption.CALLER)

    def lose_lease(self) -> None:
        """The lease is lost."""
        self.interrupt(Interruption.LEASE_LOST)

    def stop_worker(self) -> None:
        """The worker shuts down."""
        self.worker_stopping = True
        self.interrupt(Interruption.WORKER_STOPPING)

    def interrupt(self, by: Interruption) -> None:
        """Cancel the running attempt, or the wait for the next one. Further interruptions change nothing.

        An attempt is cancelled once: the first cancellation makes the SDK send `notifications/cancelled`, and a second
        one, such as the same request by the next RENEW, would interrupt that.
        """
        if self._interrupted.is_set():
            return
        self.interruption = by
        self._interrupted.set()
        if self._work is not None:
            self._work.cancel()

    async def attempt(
        self, call: Callable[[SendState], Awaitable[CallResult]], name: str, dialogue: Dialogue | None = None
    ) -> CallResult | StillOpen | None:
        """Call once; None when the call was interrupted before it had a result. `dialogue` takes what the server asks.

        A cancellation, which means that the worker shuts down, interrupts the call too. This then returns instead of
        raising, so that the call's outcome can be written.
        """
        send_state = SendState(may_ask=dialogue is not None, dialogue=dialogue)
        work = self._work = asyncio.ensure_future(call(send_state))
        work.set_name(name)
        if self._interrupted.is_set():
            work.cancel()
        try:
            if dialogue is None:
                await asyncio.wait([work])
            else:
                await asyncio.wait([work, dialogue.asked], return_when=asyncio.FIRST_COMPLETED)
                if not work.done() and not self._interrupted.is_set():
                    self._work = None
                    return StillOpen(work, dialogue)
                await asyncio.wait([work])
        except asyncio.CancelledError:
            self.stop_worker()
            await asyncio.wait([work], timeout=CANCEL_SECONDS)
        self._work = None
        result = work.result() if work.done() and not work.cancelled() else None
        self.may_have_run |= isinstance(result, Ambiguous) or (result is None and send_state.sent)
        return result

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until the call is interrupted."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._interrupted.wait()
        except asyncio.CancelledError:
            self.stop_worker()


class RunningCalls(dict[str, RunningCall]):
    """The calls that run in this worker, by correlation id."""

    def __init__(self, recent_seconds: float = RECENT_SECONDS) -> None:
        super().__init__()
        self._recent_seconds = recent_seconds
        self._cancelled: dict[str, float] = {}
        """The calls that were cancelled last, and when. One that this worker is about to run must not run: START may
        have been on its way, or Redis may have lost that the call has ended."""

    def begin(self, correlation_id: str) -> RunningCall:
        """Add a call, which is cancelled if it was to be within RECENT_SECONDS."""
        running = self[correlation_id] = RunningCall()
        if correlation_id in self._cancelled:
            running.cancel()
        return running

    def cancel(self, correlation_id: str) -> None:
        """Cancel a call for its caller, whether it runs here or begins here within RECENT_SECONDS."""
        if running := self.get(correlation_id):
            running.cancel()
        now = time.monotonic()
        while self._cancelled and self._cancelled[oldest := next(iter(self._cancelled))] < now - self._recent_seconds:
            del self._cancelled[oldest]
        self._cancelled[correlation_id] = now


NOTICE_SECONDS = 0.025
"""How long after its START a call that still runs is reported as started. Most calls have ended by then
(docs/tuning.md)."""
PROGRESS_SECONDS = 0.25
"""The least time between two progress reports of a call, and before a report that Redis did not take is sent again."""


Report = CallStarted | CallProgress


class CallReports:
    """The reports of a running call to its engine. Only the newest of those that wait is published."""

    def __init__(
        self, publish: Callable[[Report], Awaitable[object]], started: CallStarted | None, *, name: str
    ) -> None:
        """`started` is published of a call that runs for long enough. `name` is that of the task that publishes; most
        calls have none."""
        self._publish = publish
        self._started = started
        self._name = name
        self._newest: Report
        self._arrived = asyncio.Event()
        self._notice: asyncio.TimerHandle | None = None
        self._work: asyncio.Task[None] | None = None
        self._closed = False

    def begin(self) -> None:
        """Publish in NOTICE_SECONDS that the call was started, unless another report comes or has come before that."""
        if self._started is not None and self._notice is None and self._work is None:
            self._notice = asyncio.get_running_loop().call_later(NOTICE_SECONDS, self.add, self._started)

    def add(self, report: Report) -> None:
        """Publish this report soon, without making the caller wait."""
        if self._closed:
            return
        if self._notice is not None:
            self._notice.cancel()
        self._newest = report
        self._arrived.set()
        if self._work is None:
            self._work = asyncio.create_task(self._publish_newest(), name=self._name)

    async def close(self) -> None:
        """Publish nothing any more."""
        self._closed = True
        if self._notice is not None:
            self._notice.cancel()
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    async def _publish_newest(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            report, pause = self._newest, PROGRESS_SECONDS
            try:
                await self._publish(report)
                if isinstance(report, CallStarted):
                    pause = 0  # the first progress is not late because of it
            except RedisUnavailable:
                self._arrived.set()
            except RedisError:
                log.exception("the %s cannot be published", self._name)
            await asyncio.sleep(pause)
