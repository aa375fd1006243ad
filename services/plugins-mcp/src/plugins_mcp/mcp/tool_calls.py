"""Tool calls to one server: a slot, a permit, a limit, and exactly what is known afterwards."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from plugins_contract.outcomes import CallProgress
from plugins_mcp.mcp.breaker import Permit, Refusal
from plugins_mcp.mcp.calls import CallResult, NotSent, TimedOut
from plugins_mcp.mcp.connection import Connection
from plugins_mcp.mcp.flight import Flight
from plugins_mcp.mcp.reach import Reach
from plugins_mcp.mcp.spec import ServerOptions


class Slots:
    """A number of slots, given out in the order of asking. Those who still wait can be turned away."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[asyncio.Future[bool]] = deque()

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[bool]:
        """Hold a slot for as long as the block; without one, when it was turned away (False)."""
        held = self._take() or await self._wait()
        try:
            yield held
        finally:
            if held:
                self._give()

    def turn_away(self) -> None:
        """Let everybody who waits go on without a slot."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(False)

    def _take(self) -> bool:
        if not self._free or self._waiting:
            return False
        self._free -= 1
        return True

    async def _wait(self) -> bool:
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self._give()  # it was handed over in the same moment
            raise

    def _give(self) -> None:
        """Hand a slot to the next who still waits for one."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(True)
                return
        self._free += 1


@dataclass(frozen=True, slots=True)
class Ask:
    """What a caller wants: `on_progress` is called in order and must not block, `flight` is for its facts."""

    tool: str
    arguments: dict[str, Any]
    on_progress: Callable[[CallProgress], None]
    meta: dict[str, Any] | None
    flight: Flight


class ToolCalls:
    """Makes the calls. As many at once as are configured; none while the circuit is open."""

    def __init__(self, options: ServerOptions, reach: Reach, slots: Slots) -> None:
        self._options = options
        self._reach = reach
        self._slots = slots

    async def make(self, ask: Ask, timeout_s: float) -> CallResult:
        """Call once. `timeout_s` is the total: waiting for a slot and for the connection counts."""
        if refusal := self._reach.breaker.refusal():
            return self._refused(refusal)
        try:
            async with asyncio.timeout(timeout_s) as total, self._slots.taken() as taken:
                connection = await self._reach.settled() if taken else None
                permit = self._reach.breaker.admit()
                if connection is None or isinstance(permit, Refusal):
                    return self._refused(permit)
                result, began = None, time.monotonic()
                try:
                    result = await self._in_time(connection, ask)
                    return result
                finally:
                    ended = TimedOut(ask.flight.sent) if total.expired() else result
                    self._reach.ended(connection, permit, ended, time.monotonic() - began)
        except TimeoutError:
            return TimedOut(ask.flight.sent)

    async def _in_time(self, connection: Connection, ask: Ask) -> CallResult:
        """Call within the idle limit. Progress puts that off, and nothing else."""
        limit = self._options.idle_limit(ask.tool)

        def progressed(progress: CallProgress) -> None:
            if limit is not None and not idle.expired():
                idle.reschedule(asyncio.get_running_loop().time() + limit)
            self._reach.progressed()
            ask.on_progress(progress)

        try:
            async with asyncio.timeout(limit) as idle:
                return await connection.call(ask.tool, ask.arguments, ask.flight, progressed, ask.meta)
        except TimeoutError:
            return TimedOut(ask.flight.sent, quiet_s=limit)

    def _refused(self, refusal: Permit | Refusal) -> NotSent:
        """A call did not go: the circuit is open, or there was no connection for as long as calls wait."""
        breaker, why = self._reach.breaker, self._reach.error or "still connecting"
        if isinstance(refusal, Permit):
            breaker.untold(refusal)
            return NotSent(f"not connected: {why}", breaker.retry_in() if breaker.retry_at is not None else None)
        when = f"it is tried again in {refusal.retry_in:.1f} s" if refusal.retry_in else "it is being tried again"
        return NotSent(f"circuit {breaker.state}, {when}: {why}", refusal.retry_in)
