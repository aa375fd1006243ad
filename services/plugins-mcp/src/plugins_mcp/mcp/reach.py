"""What is known about the way to one server: its connection, its state, its circuit breaker.

Its owner and those who call tell what they see; those who wait, and whoever looks on, are told what became of it.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from plugins_contract.catalog import BreakerState, ServerState
from plugins_mcp.mcp.breaker import Breaker, Permit
from plugins_mcp.mcp.calls import CallResult, Failing, Healthy, NotSent, evidence
from plugins_mcp.mcp.connection import Connection
from plugins_mcp.mcp.spec import ServerSpec

log = logging.getLogger(__name__)


class Reach:
    """Whether and how a server can be reached. `breaker` is for reading; its facts come by way of the methods here."""

    def __init__(
        self, spec: ServerSpec, breaker: Breaker, *, changed: Callable[[], None], refusing: Callable[[], None]
    ) -> None:
        """`changed` is called after the state is another, `refusing` when calls are refused from now on."""
        self.breaker = breaker
        self.connection: Connection | None = None
        self._spec = spec
        self._changed = changed
        self._refusing = refusing
        self._owner_says = ServerState.CONNECTING
        self._error: str | None = None
        self._noted = breaker.state
        self._settled = asyncio.Event()
        """Set while it is known whether calls can go: they can, or they are refused."""

    @property
    def state(self) -> ServerState:
        """How it is doing: a server that is listed but answers no calls has failed as well."""
        unanswering = self.breaker.state is not BreakerState.CLOSED and self._owner_says is ServerState.READY
        return ServerState.FAILED if unanswering else self._owner_says

    @property
    def error(self) -> str | None:
        """What is wrong with it, without its secrets; None when nothing is."""
        if self._error is not None or self.breaker.reason is None:
            return self._error
        return self._spec.redact(self.breaker.reason)

    # Told by the owner.

    def begin(self) -> None:
        """It is going to be connected."""
        self.breaker.lost()

    def trying(self) -> None:
        """It is being tried again, if it was in trouble."""
        self.breaker.trying()
        self._note()

    def opened(self, connection: Connection) -> None:
        """There is a connection, and it was listed: `reached` follows."""
        self.connection = connection

    def closed(self) -> None:
        """There is none any more."""
        if self.connection is not None:
            self.breaker.lost()
        self.connection = None
        self._note()

    def reached(self, *, news: bool = False) -> None:
        """It was listed; `news`: it offers something else now."""
        self.breaker.reachable()
        self._say(ServerState.READY, None, anyway=news)
        self._note()

    def missed(self, reason: str) -> None:
        """It could not be connected or listed, or its connection was lost."""
        self.breaker.unreachable(reason)
        before = self._error
        self._say(ServerState.FAILED, reason)
        # Said loudly once: a server that stays away is tried twice a minute.
        log.log(
            logging.DEBUG if self._error == before else logging.WARNING, "server %r: %s", self._spec.name, self._error
        )
        self._note()

    # Told by calls.

    async def settled(self) -> Connection | None:
        """The connection, waiting for one that was lost a moment ago or is just being tried."""
        patience = self.breaker.patience()
        if not self._settled.is_set() and patience > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._settled.wait()
        return self.connection

    def progressed(self) -> None:
        """It said how far it is."""
        self.breaker.answered()
        self._note()

    def ended(self, connection: Connection, permit: Permit, result: CallResult | None, seconds: float) -> None:
        """A call that `permit` let go took so many seconds; without a result it was cut off here."""
        current = connection is self.connection
        if current and isinstance(result, NotSent):
            self.breaker.lost()  # its owner finds out; others wait for that instead of running into the same
        match evidence(result, seconds=seconds, lost=not current):
            case Healthy() if current:
                self.breaker.answered()
            case Failing(reason, wish):
                self.breaker.failed(permit, reason, wish)
            case _:
                self.breaker.untold(permit)
        self._note()

    def _say(self, state: ServerState, error: str | None, *, anyway: bool = False) -> None:
        told = self._spec.redact(error) if error is not None else None
        if anyway or (state, told) != (self._owner_says, self._error):
            self._owner_says, self._error = state, told
            self._changed()

    def _note(self) -> None:
        """Act on what the breaker has become."""
        now, before = self.breaker.state, self._noted
        if now is BreakerState.OPEN or (self.connection is not None and not self.breaker.down):
            self._settled.set()
        else:
            self._settled.clear()
        if now is before:
            return
        self._noted = now
        self._log(before, now)
        if now is BreakerState.OPEN:
            self._refusing()
        self._changed()

    def _log(self, before: BreakerState, now: BreakerState) -> None:
        name, wait = self._spec.name, self.breaker.retry_in()
        match now:
            case BreakerState.OPEN:
                # Said loudly once, not each time that it is tried in vain.
                level = logging.WARNING if before is BreakerState.CLOSED else logging.DEBUG
                log.log(level, "server %r: circuit open, calls are refused for %.1f s: %s", name, wait, self.error)
            case BreakerState.HALF_OPEN:
                log.debug("server %r: circuit half-open, it is tried again", name)
            case BreakerState.CLOSED:
                log.info("server %r: circuit closed", name)
