"""A call that runs in this worker: its interruption by several causes, and its progress reports to the engine."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

from plugins_contract.connections import is_outage
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallProgress
from plugins_mcp.decisions import Interruption
from plugins_mcp.mcp import Ambiguous, CallResult, SendState
from plugins_mcp.ports import CallLedger

log = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0
"""How long the cancellation of an interrupted call may take to reach its MCP server."""


@dataclass(slots=True)
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

    async def attempt(self, call: Callable[[SendState], Awaitable[CallResult]], *, name: str) -> CallResult | None:
        """Call once; None when the call was interrupted before it had a result.

        A cancellation, which means that the worker shuts down, interrupts the call too. This then returns instead of
        raising, so that the call's outcome can be written.
        """
        send_state = SendState()
        work = self._work = asyncio.ensure_future(call(send_state))
        work.set_name(name)
        if self._interrupted.is_set():
            work.cancel()
        try:
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


PROGRESS_SECONDS = 0.25
"""The least time between two progress reports of a call."""


@contextlib.asynccontextmanager
async def progress_publisher(
    ledger: CallLedger, request: ToolCallRequested, fence: int
) -> AsyncGenerator[Callable[[CallProgress], None]]:
    """A callback for progress. The newest report is published at intervals, without blocking the call."""
    newest: list[CallProgress] = []
    arrived = asyncio.Event()
    work: asyncio.Task[None] | None = None  # most calls report no progress

    def on_progress(progress: CallProgress) -> None:
        nonlocal work
        newest[:] = [progress]
        arrived.set()
        if work is None:
            work = asyncio.create_task(publish(), name=f"progress of {request.correlation_id}")

    async def publish() -> None:
        while True:
            await arrived.wait()
            arrived.clear()
            try:
                await ledger.progress(request, fence, newest[0])
            except Exception as error:
                if not is_outage(error):
                    log.exception("progress of call %s cannot be published", request.correlation_id)
            await asyncio.sleep(PROGRESS_SECONDS)

    try:
        yield on_progress
    finally:
        if work is not None:
            work.cancel()
            await asyncio.wait([work])
