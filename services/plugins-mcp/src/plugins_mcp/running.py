"""A call that runs here: what is known about it, and its end from several sides.

What its tool says about how far it is goes to the engine meanwhile.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

from plugins_contract.connections import is_outage
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallProgress
from plugins_mcp.decisions import Cut
from plugins_mcp.mcp import Ambiguous, CallResult, Flight
from plugins_mcp.ports import CallLedger

log = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0
"""How long a call that is cut off may take to tell its MCP server so."""


@dataclass(slots=True)
class Running:
    """`cut`: who cut it off, the first to do so. `may_have_run`: an attempt was sent, and there was no telling.

    `worker_ends`: there is not much time left for anything.
    """

    cut: Cut | None = None
    may_have_run: bool = False
    worker_ends: bool = False
    _work: asyncio.Task[CallResult] | None = None
    _gone: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self) -> None:
        """Its caller wants it no more."""
        self.cut_off(Cut.CALLER)

    def lose(self) -> None:
        """Its lease is lost."""
        self.cut_off(Cut.LEASE)

    def end(self) -> None:
        """This worker ends."""
        self.worker_ends = True
        self.cut_off(Cut.WORKER)

    def cut_off(self, by: Cut) -> None:
        """End what runs and whatever it waits for."""
        self.cut = self.cut or by
        self._gone.set()
        if self._work is not None:
            self._work.cancel()

    async def attempt(self, call: Callable[[Flight], Awaitable[CallResult]], *, name: str) -> CallResult | None:
        """Call once. None when it was cut off before there was a result.

        The end of this worker, which is a cancellation, cuts the call off as well: then this returns, so that it can
        be said what became of the call.
        """
        flight = Flight()
        work = self._work = asyncio.ensure_future(call(flight))
        work.set_name(name)
        if self._gone.is_set():
            work.cancel()
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            self.end()
            await asyncio.wait([work], timeout=CANCEL_SECONDS)
        self._work = None
        result = work.result() if work.done() and not work.cancelled() else None
        self.may_have_run |= isinstance(result, Ambiguous) or (result is None and flight.sent)
        return result

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until it is cut off."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._gone.wait()
        except asyncio.CancelledError:
            self.end()


PROGRESS_SECONDS = 0.25
"""Progress is passed on at most this often."""


@contextlib.asynccontextmanager
async def passed_on(
    ledger: CallLedger, request: ToolCallRequested, fence: int
) -> AsyncGenerator[Callable[[CallProgress], None]]:
    """A sink for progress: the newest is passed on at intervals, and never holds up the call."""
    newest: list[CallProgress] = []
    arrived = asyncio.Event()

    def take(progress: CallProgress) -> None:
        newest[:] = [progress]
        arrived.set()

    async def pass_on() -> None:
        while True:
            await arrived.wait()
            arrived.clear()
            try:
                await ledger.progress(request, fence, newest[0])
            except Exception as error:
                if not is_outage(error):
                    log.exception("progress of call %s cannot be passed on", request.correlation_id)
            await asyncio.sleep(PROGRESS_SECONDS)

    work = asyncio.create_task(pass_on(), name=f"progress of {request.correlation_id}")
    try:
        yield take
    finally:
        work.cancel()
        await asyncio.wait([work])
