"""The connection to one server across all its sessions: its circuit breaker, and the calls through it.

The connection's owner (`McpServer`) reports its attempts and sessions here. Calls take a slot, wait for a session if
one is about to be opened, and report their results to the circuit breaker.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from plugins_contract.catalog import BreakerState
from plugins_contract.outcomes import CallProgress
from plugins_mcp.mcp.calls import Answered, CallResult, InputAsked, NotSent, RetryLater, SendState, TimedOut
from plugins_mcp.mcp.circuit_breaker import (
    CircuitBreaker,
    ConnectionPolicy,
    Failing,
    Healthy,
    Late,
    NoPermit,
    Permit,
    health_signal,
)
from plugins_mcp.mcp.dialogue import Slot
from plugins_mcp.mcp.late_calls import LateCalls, Source
from plugins_mcp.mcp.server_status import ServerStatus
from plugins_mcp.mcp.session import Session
from plugins_mcp.mcp.spec import ServerSpec


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A call that was let through, by the server's circuit and by that of its tool and subject."""

    session: Session
    permit: Permit
    source: Source
    own: Permit


class ServerConnection:
    """Whether and how a server can be reached. `breaker` is for reading; events are reported through the methods."""

    def __init__(self, spec: ServerSpec, policy: ConnectionPolicy, *, on_change: Callable[[], None]) -> None:
        """`on_change` is called after each change of the state; it must not block."""
        self.breaker = CircuitBreaker(policy)
        self.status = ServerStatus(spec, self.breaker, on_change)
        self.session: Session | None = None
        self._late = LateCalls(policy)
        self._spec = spec
        self._policy = policy
        self._on_change = on_change
        self._breaker_state = self.breaker.state
        self._decided = asyncio.Event()
        """Set while it is known whether calls can go: there is a session, or calls are refused."""
        self._slots = asyncio.Semaphore(spec.options.concurrency)
        self._calls = 0
        self.idle = asyncio.Event()
        """Set while there is no call."""
        self.idle.set()
        self._has_idle_limits = spec.options.idle_timeout_ms is not None or bool(spec.options.tools)
        self._waiting: set[asyncio.Timeout] = set()
        """The calls that wait for a slot. Rescheduling a timeout to now ends that wait."""

    # Called by the owner.

    def started(self) -> None:
        """The owner starts. Calls wait for the first session as they would for the next one after a loss."""
        self.breaker.lost()

    def attempt_started(self) -> None:
        """The owner tries to connect or to list."""
        self.breaker.attempt_started()
        self._breaker_changed()

    def session_opened(self, session: Session) -> None:
        """There is a session that was listed; `listed` follows."""
        self.session = session

    def session_closed(self) -> None:
        """There is no session any more."""
        if self.session is not None:
            self.breaker.lost()
        self.session = None
        self._breaker_changed()

    def listed(self, *, changed: bool) -> None:
        """The server was listed; `changed`: its listing differs from the one before."""
        self.breaker.reachable()
        self.status.listed(changed=changed)
        self._breaker_changed()

    def failed(self, reason: str, *, standard_error: str = "") -> None:
        """The server could not be connected or listed, or its connection was lost: see `ServerStatus.failed`."""
        self.breaker.unreachable(reason)
        self.status.failed(reason, standard_error)
        self._breaker_changed()

    # Called for calls.

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        subject: str = "",
        known: asyncio.Event,
        refused: Callable[[], CallResult | None] = lambda: None,
        timeout_s: float,
        granted_s: float,
        on_begin: Callable[[], None],
        on_progress: Callable[[CallProgress], None],
        meta: dict[str, Any] | None,
        send_state: SendState,
    ) -> CallResult:
        """Call `tool` once: see `McpServer.call`. When `known` is set, `refused` is asked, just before it is sent."""
        source = (tool, subject)
        if not self._calm and (refused_now := self._refusal(source)):
            return refused_now
        try:
            async with asyncio.timeout(timeout_s) as total, self._slot(total) as slot:
                if send_state.dialogue is not None:
                    send_state.dialogue.slot = slot
                session = await self._next_session() if slot.held else None
                while session is not None and not known.is_set():
                    await known.wait()
                    session = await self._next_session()
                if session is not None and (refusal := refused()):
                    return refusal
                admitted = self._admit(session, source)
                if not isinstance(admitted, _Admitted):
                    return admitted
                started, result = time.monotonic(), None
                on_begin()
                try:
                    result = await self._call_in_session(admitted, arguments, on_progress, meta, send_state)
                    return result
                finally:
                    end = TimedOut(send_state.sent) if total.expired() else result
                    self._call_ended(admitted, end, time.monotonic() - started - slot.paused_s, granted_s)
        except TimeoutError:
            return TimedOut(send_state.sent)

    @property
    def _calm(self) -> bool:
        """Whether no circuit has anything to decide about calls, or to learn from an answer."""
        return not self.breaker.trouble and not self._late.circuits

    def _refusal(self, source: Source) -> CallResult | None:
        """The refusal of a call that need not wait for anything; None when the call may try."""
        if refusal := self.breaker.refusal():
            return self._refused(refusal)
        refusal = self._late.refusal(source)
        return _late_refused(source, refusal) if refusal else None

    def _admit(self, session: Session | None, source: Source) -> _Admitted | CallResult:
        """Decide on a call that is ready to be sent."""
        if session is not None and self._calm:
            return _Admitted(session, Permit(self.breaker.epoch), source, Permit(0))
        own = self._late.admit(source)
        if isinstance(own, NoPermit):
            return _late_refused(source, own)
        permit = self.breaker.admit()
        if session is None or isinstance(permit, NoPermit):
            self._late.inconclusive(source, own)
            return self._refused(permit)
        return _Admitted(session, permit, source, own)

    @asynccontextmanager
    async def _slot(self, total: asyncio.Timeout) -> AsyncGenerator[Slot]:
        """Hold one of the server's slots, given out in order; none is held when the circuit opened during the wait."""
        slot = Slot(self._slots, total)
        self._calls += 1
        self.idle.clear()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as wait:
                    self._waiting.add(wait)
                    try:
                        await slot.take()
                    finally:
                        self._waiting.discard(wait)
            yield slot
        finally:
            slot.give_back()
            self._calls -= 1
            if not self._calls:
                self.idle.set()

    async def _next_session(self) -> Session | None:
        """The session; waits for the next one if the last was just lost or the owner is trying to connect."""
        if not self._decided.is_set() and (limit := self.breaker.call_wait()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._decided.wait()
        return self.session

    async def _call_in_session(
        self,
        admitted: _Admitted,
        arguments: dict[str, Any],
        on_progress: Callable[[CallProgress], None],
        meta: dict[str, Any] | None,
        send_state: SendState,
    ) -> CallResult:
        """Call within the tool's idle timeout, which starts again with each progress report."""
        tool, _ = admitted.source
        limit = self._spec.options.idle_limit(tool) if self._has_idle_limits else None
        slot = send_state.dialogue.slot if send_state.dialogue else None

        def progressed(progress: CallProgress) -> None:
            if limit is not None and not idle.expired() and not (slot and slot.paused):
                idle.reschedule(asyncio.get_running_loop().time() + limit)
            self._answered(admitted.source)
            on_progress(progress)

        try:
            async with asyncio.timeout(limit) as idle:
                if slot is not None and limit is not None:
                    slot.idles(idle, limit)
                return await admitted.session.call(tool, arguments, send_state, progressed, meta)
        except TimeoutError:
            return TimedOut(send_state.sent, quiet_s=limit)

    def _call_ended(self, call: _Admitted, result: CallResult | None, seconds: float, granted_s: float) -> None:
        """Report a call that took `seconds`; `result` is None when the caller cancelled it."""
        current = call.session is self.session
        if self._calm and isinstance(result, Answered | InputAsked):
            return
        if current and isinstance(result, NotSent):
            self.breaker.lost()  # the owner finds out more; other calls wait for that instead of failing the same way
        match health_signal(result, self._policy, seconds=seconds, granted_s=granted_s, lost=not current):
            case Healthy() if current:
                self._answered(call.source)
            case Failing(reason, retry_after):
                self.breaker.failed(call.permit, reason, retry_after)
                self._late.inconclusive(call.source, call.own)
            case Late(reason):
                self.breaker.late(call.permit, reason, call.source[1])
                self._late.late(call.source, call.own, reason)
            case _:
                self.breaker.inconclusive(call.permit)
                self._late.inconclusive(call.source, call.own)
        self._breaker_changed()

    def _answered(self, source: Source) -> None:
        if not self._calm:
            self.breaker.answered()
            self._late.answered(source)
            self._breaker_changed()

    def _refused(self, decision: Permit | NoPermit) -> NotSent:
        """The result of a call that was not sent: the circuit is not closed, or there was no session in time."""
        why = self.status.error or "still connecting"
        if isinstance(decision, Permit):
            self.breaker.inconclusive(decision)
            return NotSent(
                f"not connected: {why}", self.breaker.retry_in() if self.breaker.retry_at is not None else None
            )
        when = f"it is tried again in {decision.retry_in:.1f} s" if decision.retry_in else "it is being tried again"
        return NotSent(f"circuit {self.breaker.state}, {when}: {why}", decision.retry_in)

    def _breaker_changed(self) -> None:
        """Wake the calls that wait, if the breaker's state decides about them, and publish a new state."""
        now, before = self.breaker.state, self._breaker_state
        if now is BreakerState.OPEN or (self.session is not None and not self.breaker.down):
            self._decided.set()
        else:
            self._decided.clear()
        if now is before:
            return
        self._breaker_state = now
        self.status.log_circuit(before)
        if now is BreakerState.OPEN:
            for wait in self._waiting:
                wait.reschedule(asyncio.get_running_loop().time())
            self._waiting.clear()
        self._on_change()


def _late_refused(source: Source, refusal: NoPermit) -> RetryLater:
    """The result of a call that was not sent, because those of its subject to its tool were late again and again."""
    why = f"several calls of {source[0]!r} by this user in a row were not answered in time"
    return RetryLater(why, refusal.retry_in)
