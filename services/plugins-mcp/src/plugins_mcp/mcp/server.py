"""One MCP server: its owner task, its state, and calls to it."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mcp import MCPError
from mcp.types import CONNECTION_CLOSED

from plugins_contract.catalogue import ServerCatalogue, ServerState
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallProgress
from plugins_mcp.mcp.calls import Ambiguous, Answered, CallResult, NotSent, Rejected, RetryLater, TimedOut
from plugins_mcp.mcp.connection import Connection
from plugins_mcp.mcp.failures import describe, expected, leaves
from plugins_mcp.mcp.flight import Flight
from plugins_mcp.mcp.listing import Offers, to_catalogue
from plugins_mcp.mcp.spec import ServerSpec, Stdio
from plugins_mcp.mcp.stderr import StderrTail

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """How patient and how eager a server's owner is. All in seconds."""

    first_delay: float = 0.5
    longest_delay: float = 30.0
    stable_after: float = 30.0
    """A connection that lived this long starts the delays from the first again."""
    call_waits: float = 5.0
    """How long after the loss of a connection calls wait for the next one."""
    relist_every: float = 300.0
    """Notifications of changes are lost now and then: a legacy HTTP stream may go silent for good."""
    relist_gap: float = 0.5
    """Between two listings, whatever the server says."""
    list_within: float = 30.0
    drain: float = 2.0
    """How long calls on a lost session may still end by themselves."""


class McpServer:
    """A connection that is kept up. `run` is its owner: the only task that opens and closes the connection.

    `catalogue` is what the server offered last, also while it is away. `generation` counts its connections.
    """

    def __init__(
        self, spec: ServerSpec, *, changed: Callable[[str], None] = lambda server: None, pace: Pace | None = None
    ) -> None:
        """`changed` is called with the server's name after its state or its catalogue changed; it must not block."""
        self.spec = spec
        self.state = ServerState.CONNECTING
        self.last_error: str | None = None
        self.generation = 0
        self.catalogue: ServerCatalogue | None = None
        self.tried = asyncio.Event()
        """Set once the server was connected or has failed for the first time."""
        self._changed = changed
        self._pace = pace or Pace()
        self._slots = asyncio.Semaphore(spec.options.concurrency)
        self._stopping = asyncio.Event()
        self._up = asyncio.Event()
        self._stale = asyncio.Event()
        self._connection: Connection | None = None
        self._down_since = time.monotonic()
        self._offers: Offers | None = None
        self._dies_when_probed = False

    async def run(self) -> None:
        """Own the connection until `stop`: connect, keep the listing fresh, reconnect. To be run in a TaskGroup."""
        self._down_since = time.monotonic()
        async with asyncio.TaskGroup() as group:
            owner = group.create_task(self._own(), name=f"mcp-server:{self.spec.name}")
            try:
                await self._stopping.wait()
            finally:
                self._stopping.set()
                owner.cancel()

    def stop(self) -> None:
        """Let `run` close the connection and return. Calls that are under way end as `Ambiguous`."""
        self._stopping.set()

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout_s: float,
        on_progress: Callable[[CallProgress], None] = lambda progress: None,
        meta: dict[str, Any] | None = None,
    ) -> CallResult:
        """Call `tool` once and say exactly what is known afterwards. Never retries.

        `timeout_s` is the total: waiting for a free slot and for the connection counts. `on_progress` is called in
        order, must not block, and never after this returns. Cancelling the caller cancels the call at the server.
        """
        if self.spec.options.tool(tool).disabled:
            return Rejected(ErrorCode.DISABLED, f"the tool {tool!r} is disabled in the configuration")
        flight = Flight()
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                connection = await self._connected()
                if connection is None:
                    return NotSent(f"not connected: {self.last_error or 'still connecting'}")
                result = await connection.call(tool, arguments, flight, on_progress, meta)
        except TimeoutError:
            return TimedOut(sent=flight.sent)
        if isinstance(result, Answered) and result.result.is_error and not self._lists(tool):
            result = Rejected(ErrorCode.TOOL_NOT_FOUND, f"the server has no tool {tool!r}")
        match result:
            case NotSent() | Rejected(code=ErrorCode.TOOL_NOT_FOUND):
                self._stale.set()  # find out whether the server is gone, or offers something else now
            case _:
                pass
        return self._redacted(result)

    def _lists(self, tool: str) -> bool:
        return self._offers is not None and any(listed.name == tool for listed in self._offers.tools)

    async def _connected(self) -> Connection | None:
        """The connection, waiting for one that was lost a moment ago."""
        patience = self._down_since + self._pace.call_waits - time.monotonic()
        if not self._up.is_set() and patience > 0 and not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._up.wait()
        return self._connection

    async def _own(self) -> None:
        delay = self._pace.first_delay
        while True:
            began = time.monotonic()
            stderr = StderrTail()
            try:
                await self._one_connection(stderr)
                reason = "the connection was lost"
            except Exception as error:
                reason = describe(error)
                if not expected(error):
                    log.exception("server %r: unforeseen failure", self.spec.name)
            if self._stopping.is_set():
                return  # a transport that fails while it is being left swallows our cancellation
            self._failed(reason, stderr)
            if time.monotonic() - began > self._pace.stable_after:
                delay = self._pace.first_delay
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))
            delay = min(delay * 2, self._pace.longest_delay)

    async def _one_connection(self, stderr: StderrTail) -> None:
        """Connect, serve until the connection is lost, close it."""
        mode = "legacy" if self._dies_when_probed else self.spec.options.protocol
        connection = Connection(self.spec, mode, stderr, self._stale.set)
        reached = False
        try:
            async with asyncio.timeout(self.spec.options.connect_timeout_ms / 1000) as handshake, connection.client:
                offers = await connection.offers()
                handshake.reschedule(None)
                reached = True
                self._opened(connection, offers)
                await self._serve(connection)
        except Exception as error:
            if not reached:
                self._learn(error)
            raise
        finally:
            self._closed()

    async def _serve(self, connection: Connection) -> None:
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._keep_fresh(connection)), group.create_task(connection.listen())]
            await connection.ended.wait()
            self._closed()
            for helper in helpers:
                helper.cancel()
        # What is lost for new calls may still bring the answers to old ones: another replica of the server has them.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.drain):
                await connection.idle.wait()

    async def _keep_fresh(self, connection: Connection) -> None:
        """List again when the server says so, after a while, and soon after a failure."""
        retry = self._pace.first_delay
        delay = self._pace.relist_every
        while True:
            await asyncio.sleep(self._pace.relist_gap)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stale.wait()
            self._stale.clear()
            if await self._relist(connection):
                retry, delay = self._pace.first_delay, self._pace.relist_every
            else:
                delay, retry = retry, min(retry * 2, self._pace.longest_delay)

    async def _relist(self, connection: Connection) -> bool:
        """Whether the server could be listed. When not, the session is kept: calls under way may still be well."""
        try:
            async with asyncio.timeout(self._pace.list_within):
                self._publish(await connection.offers())
        except TimeoutError as error:
            if connection.idle.is_set():
                connection.lost()  # it hangs, and nobody is waiting for it: start anew
            self._say(ServerState.FAILED, describe(error))
        except (MCPError, ValueError) as error:
            self._say(ServerState.FAILED, describe(error))
        else:
            return True
        return False

    def _opened(self, connection: Connection, offers: Offers) -> None:
        self.generation += 1
        self._connection = connection
        self._stale.clear()
        self._up.set()
        self._publish(offers)
        self.tried.set()
        log.info("server %r: connected, protocol %s", self.spec.name, connection.client.protocol_version)

    def _closed(self) -> None:
        if self._connection is not None:
            self._down_since = time.monotonic()
        self._connection = None
        self._up.clear()

    def _failed(self, reason: str, stderr: StderrTail) -> None:
        last_words, before = stderr.text(), self.last_error
        self._say(ServerState.FAILED, f"{reason}; its last words: {last_words}" if last_words else reason)
        # Said loudly once: a server that stays away is tried twice a minute.
        level = logging.DEBUG if self.last_error == before else logging.WARNING
        log.log(level, "server %r: %s", self.spec.name, self.last_error)
        self.tried.set()

    def _learn(self, error: Exception) -> None:
        """Servers of the first MCP releases die of the question which protocol they speak: next time, do not ask.

        A server may have died for another reason, so the time after that it is asked again.
        """
        died = any(isinstance(leaf, MCPError) and leaf.code == CONNECTION_CLOSED for leaf in leaves(error))
        if died and self.spec.options.protocol == "auto" and isinstance(self.spec.transport, Stdio):
            self._dies_when_probed = not self._dies_when_probed

    def _publish(self, offers: Offers) -> None:
        new = offers != self._offers
        if new:
            self._offers = offers
            self.catalogue = to_catalogue(self.spec, offers)
        self._say(ServerState.READY, None, anyway=new)

    def _say(self, state: ServerState, error: str | None, *, anyway: bool = False) -> None:
        told = self.spec.redact(error) if error is not None else None
        if anyway or (state, told) != (self.state, self.last_error):
            self.state, self.last_error = state, told
            self._changed(self.spec.name)

    def _redacted(self, result: CallResult) -> CallResult:
        match result:
            case NotSent(reason=reason):
                return NotSent(self.spec.redact(reason))
            case RetryLater(reason=reason, after_s=after_s):
                return RetryLater(self.spec.redact(reason), after_s)
            case Ambiguous(reason=reason):
                return Ambiguous(self.spec.redact(reason))
            case Rejected(code=code, message=message):
                return Rejected(code, self.spec.redact(message))
            case _:
                return result
