"""The connection to one server across all its sessions: its state, its circuit breaker, and the calls through it.

The connection's owner (`McpServer`) reports its attempts and sessions here. Calls take a slot, wait for a session if
one is about to be opened, and report their results to the circuit breaker.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from callstream_runtime.visible import visible
from plugins_contract.catalog import BreakerState, ServerState
from plugins_contract.outcomes import CallProgress
from plugins_mcp.mcp.calls import CallResult, NotSent, RetryLater, SendState, TimedOut
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
from plugins_mcp.mcp.late_calls import LateCalls, Source
from plugins_mcp.mcp.session import Session
from plugins_mcp.mcp.spec import ServerSpec

log = logging.getLogger(__name__)

MAX_REASON = 1_000
"""Characters of what is wrong with a server that are kept and logged. It may have sent an error of 32 MB."""


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
        self.session: Session | None = None
        self._late = LateCalls(policy)
        self._spec = spec
        self._on_change = on_change
        self._owner_state = ServerState.CONNECTING
        self._error: str | None = None
        self._breaker_state = self.breaker.state
        self._decided = asyncio.Event()
        """Set while it is known whether calls can go: there is a session, or calls are refused."""
        self._slots = asyncio.Semaphore(spec.options.concurrency)
        self._waiting: set[asyncio.Timeout] = set()
        """The calls that wait for a slot. Rescheduling a timeout to now ends that wait."""

    @property
    def state(self) -> ServerState:
        """The server's state. A server that can be listed but does not answer calls has failed as well."""
        not_answering = self.breaker.state is not BreakerState.CLOSED and self._owner_state is ServerState.READY
        return ServerState.FAILED if not_answering else self._owner_state

    @property
    def error(self) -> str | None:
        """What is wrong, without the server's secrets and addresses; None when nothing is."""
        if self._error is not None or self.breaker.reason is None:
            return self._error
        return self._spec.redact_for_users(self.breaker.reason)[:MAX_REASON]

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
        self._set_state(ServerState.READY, None, notify=changed)
        self._breaker_changed()

    def failed(self, reason: str, *, standard_error: str = "") -> None:
        """The server could not be connected or listed, or its connection was lost.

        What it wrote to its standard error, and its address, are for operators: they are logged only.
        """
        self.breaker.unreachable(reason)
        before = self._error
        self._set_state(ServerState.FAILED, reason)
        # A server that stays away is tried twice a minute: only a new reason is logged as a warning.
        level = logging.DEBUG if self._error == before else logging.WARNING
        said = f"; standard error: {self._spec.redact(standard_error)}" if standard_error else ""
        log.log(level, "MCP server %r is not reachable: %s%s", self._spec.name, self._logged(reason), said)
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
        if refusal := self.breaker.refusal():
            return self._refused(refusal)
        if refusal := self._late.refusal(source):
            return _late_refused(tool, refusal)
        try:
            async with asyncio.timeout(timeout_s) as total, self._slot() as has_slot:
                session = await self._next_session() if has_slot else None
                while session is not None and not known.is_set():
                    await known.wait()
                    session = await self._next_session()
                if session is not None and (refusal := refused()):
                    return refusal
                own = self._late.admit(source)
                if isinstance(own, NoPermit):
                    return _late_refused(tool, own)
                permit = self.breaker.admit()
                if session is None or isinstance(permit, NoPermit):
                    self._late.inconclusive(source, own)
                    return self._refused(permit)
                started, result = time.monotonic(), None
                on_begin()
                try:
                    result = await self._call_in_session(session, source, arguments, on_progress, meta, send_state)
                    return result
                finally:
                    end = TimedOut(send_state.sent) if total.expired() else result
                    admitted = _Admitted(session, permit, source, own)
                    self._call_ended(admitted, end, time.monotonic() - started, granted_s)
        except TimeoutError:
            return TimedOut(send_state.sent)

    @asynccontextmanager
    async def _slot(self) -> AsyncGenerator[bool]:
        """Hold one of the server's slots, given out in order; False when the circuit opened during the wait."""
        acquired = False
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as wait:
                self._waiting.add(wait)
                try:
                    acquired = await self._slots.acquire()
                finally:
                    self._waiting.discard(wait)
        try:
            yield acquired
        finally:
            if acquired:
                self._slots.release()

    async def _next_session(self) -> Session | None:
        """The session; waits for the next one if the last was just lost or the owner is trying to connect."""
        limit = self.breaker.call_wait()
        if not self._decided.is_set() and limit > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._decided.wait()
        return self.session

    async def _call_in_session(
        self,
        session: Session,
        source: Source,
        arguments: dict[str, Any],
        on_progress: Callable[[CallProgress], None],
        meta: dict[str, Any] | None,
        send_state: SendState,
    ) -> CallResult:
        """Call within the tool's idle timeout, which starts again with each progress report."""
        tool, _ = source
        limit = self._spec.options.idle_limit(tool)

        def progressed(progress: CallProgress) -> None:
            if limit is not None and not idle.expired():
                idle.reschedule(asyncio.get_running_loop().time() + limit)
            self._answered(source)
            self._breaker_changed()
            on_progress(progress)

        try:
            async with asyncio.timeout(limit) as idle:
                return await session.call(tool, arguments, send_state, progressed, meta)
        except TimeoutError:
            return TimedOut(send_state.sent, quiet_s=limit)

    def _call_ended(self, call: _Admitted, result: CallResult | None, seconds: float, granted_s: float) -> None:
        """Report a call that took `seconds`; `result` is None when the caller cancelled it."""
        current = call.session is self.session
        if current and isinstance(result, NotSent):
            self.breaker.lost()  # the owner finds out more; other calls wait for that instead of failing the same way
        match health_signal(result, seconds=seconds, granted_s=granted_s, lost=not current):
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
        self.breaker.answered()
        self._late.answered(source)

    def _refused(self, decision: Permit | NoPermit) -> NotSent:
        """The result of a call that was not sent: the circuit is not closed, or there was no session in time."""
        why = self.error or "still connecting"
        if isinstance(decision, Permit):
            self.breaker.inconclusive(decision)
            return NotSent(
                f"not connected: {why}", self.breaker.retry_in() if self.breaker.retry_at is not None else None
            )
        when = f"it is tried again in {decision.retry_in:.1f} s" if decision.retry_in else "it is being tried again"
        return NotSent(f"circuit {self.breaker.state}, {when}: {why}", decision.retry_in)

    # State changes.

    def _set_state(self, state: ServerState, error: str | None, *, notify: bool = False) -> None:
        error = visible(self._spec.redact_for_users(error)[:MAX_REASON]) if error is not None else None
        if notify or (state, error) != (self._owner_state, self._error):
            self._owner_state, self._error = state, error
            self._on_change()

    def _logged(self, reason: str) -> str:
        return visible(self._spec.redact(reason)[:MAX_REASON])

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
        self._log_breaker(before, now)
        if now is BreakerState.OPEN:
            for wait in self._waiting:
                wait.reschedule(asyncio.get_running_loop().time())
            self._waiting.clear()
        self._on_change()

    def _log_breaker(self, before: BreakerState, now: BreakerState) -> None:
        name, pause = self._spec.name, self.breaker.retry_in()
        why = self._logged(self.breaker.reason or self._error or "")
        match now:
            case BreakerState.OPEN:
                # Only the change from closed is logged as a warning, not each failed probe after it.
                level = logging.WARNING if before is BreakerState.CLOSED else logging.DEBUG
                log.log(level, "MCP server %r: circuit open, calls are refused for %.1f s: %s", name, pause, why)
            case BreakerState.HALF_OPEN:
                log.debug("MCP server %r: circuit half-open, a probe is under way", name)
            case BreakerState.CLOSED:
                log.info("MCP server %r: circuit closed", name)


def _late_refused(tool: str, refusal: NoPermit) -> RetryLater:
    """The result of a call that was not sent, because those of its subject to its tool were late again and again."""
    return RetryLater(f"several calls of {tool!r} by this user in a row were not answered in time", refusal.retry_in)
