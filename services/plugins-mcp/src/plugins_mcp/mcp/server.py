"""One MCP server: its owner task, its state, and calls to it."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mcp import MCPError
from mcp.types import CONNECTION_CLOSED

from plugins_contract.catalog import ServerCatalog, ServerState
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallProgress
from plugins_mcp.mcp.breaker import Breaker
from plugins_mcp.mcp.calls import Answered, CallResult, NotSent, Rejected, TimedOut, redacted
from plugins_mcp.mcp.connection import Connection
from plugins_mcp.mcp.failures import describe, expected, leaves
from plugins_mcp.mcp.flight import Flight
from plugins_mcp.mcp.listing import Offers, to_catalog
from plugins_mcp.mcp.pace import Pace
from plugins_mcp.mcp.reach import Reach
from plugins_mcp.mcp.spec import ServerSpec, Stdio
from plugins_mcp.mcp.stderr import StderrTail
from plugins_mcp.mcp.tool_calls import Ask, Slots, ToolCalls

log = logging.getLogger(__name__)


class McpServer:
    """A connection that is kept up. `run` is its owner: the only task that opens and closes the connection.

    `catalog` is what the server offered last, also while it is away. `generation` counts its connections. `breaker`
    says whether calls go to it and when its owner tries again.
    """

    def __init__(
        self, spec: ServerSpec, *, changed: Callable[[str], None] = lambda server: None, pace: Pace | None = None
    ) -> None:
        """`changed` is called with the server's name after its state or its catalog changed; it must not block."""
        self.spec = spec
        self.generation = 0
        self.catalog: ServerCatalog | None = None
        self.tried = asyncio.Event()
        """Set once the server was connected or has failed for the first time."""
        self._pace = pace or Pace()
        self.breaker = Breaker(self._pace.limits())
        slots = Slots(spec.options.concurrency)
        self._reach = Reach(spec, self.breaker, changed=lambda: changed(spec.name), refusing=slots.turn_away)
        self._calls = ToolCalls(spec.options, self._reach, slots)
        self._stopping = asyncio.Event()
        self._stale = asyncio.Event()
        self._offers: Offers | None = None
        self._dies_when_probed = False

    @property
    def state(self) -> ServerState:
        """How it is doing."""
        return self._reach.state

    @property
    def last_error(self) -> str | None:
        """What is wrong with it; None when it is ready."""
        return self._reach.error

    async def run(self) -> None:
        """Own the connection until `stop`: connect, keep the listing fresh, reconnect. To be run in a TaskGroup."""
        self._reach.begin()
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
        flight: Flight | None = None,
    ) -> CallResult:
        """Call `tool` once and say exactly what is known afterwards. Never retries.

        `timeout_s` is the total: waiting for a free slot and for the connection counts. `on_progress` is called in
        order, must not block, and never after this returns. Cancelling the caller cancels the call at the server;
        `flight` then says whether it was sent. A server in trouble refuses at once.
        """
        if self.spec.options.tool(tool).disabled:
            return Rejected(ErrorCode.DISABLED, f"the tool {tool!r} is disabled in the configuration")
        if self._stopping.is_set():
            return NotSent("this worker is ending")
        result = await self._calls.make(Ask(tool, arguments, on_progress, meta, flight or Flight()), timeout_s)
        if isinstance(result, Answered) and result.result.is_error and not self._lists(tool):
            result = Rejected(ErrorCode.TOOL_NOT_FOUND, f"the server has no tool {tool!r}")
        match result:
            case NotSent() | TimedOut(sent=True) | Rejected(code=ErrorCode.TOOL_NOT_FOUND):
                self._stale.set()  # find out whether the server is gone or hangs, or offers something else now
            case _:
                pass
        return redacted(result, self.spec.redact)

    def _lists(self, tool: str) -> bool:
        return self._offers is not None and any(listed.name == tool for listed in self._offers.tools)

    async def _own(self) -> None:
        while True:
            self._reach.trying()
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
            last_words = stderr.text()
            self._reach.missed(f"{reason}; its last words: {last_words}" if last_words else reason)
            self.tried.set()
            await asyncio.sleep(self.breaker.retry_in())

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
                await self._opened(connection, offers)
                await self._serve(connection)
        except Exception as error:
            if not reached:
                self._learn(error)
            raise
        finally:
            self._reach.closed()

    async def _serve(self, connection: Connection) -> None:
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._keep_fresh(connection)), group.create_task(connection.listen())]
            await connection.ended.wait()
            self._reach.closed()
            for helper in helpers:
                helper.cancel()
        # What is lost for new calls may still bring the answers to old ones: another replica of the server has them.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.drain):
                await connection.idle.wait()

    async def _keep_fresh(self, connection: Connection) -> None:
        """List again when the server says so, after a while, and soon after a failure."""
        while True:
            await asyncio.sleep(self._pace.relist_gap)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.relist_every):
                    await self._stale.wait()
            self._stale.clear()
            while not await self._relist(connection):
                await asyncio.sleep(self.breaker.retry_in())
                self._reach.trying()

    async def _relist(self, connection: Connection) -> bool:
        """Whether the server could be listed. When not, the session is kept: calls under way may still be well."""
        try:
            async with asyncio.timeout(self._pace.list_within):
                offers = await connection.offers()
        except TimeoutError as error:
            if connection.idle.is_set():
                connection.lost()  # it hangs, and nobody is waiting for it: start anew
            self._reach.missed(describe(error))
        except (MCPError, ValueError) as error:
            self._reach.missed(describe(error))
        else:
            await self._publish(offers)
            return True
        return False

    async def _opened(self, connection: Connection, offers: Offers) -> None:
        self.generation += 1
        self._stale.clear()
        self._reach.opened(connection)
        await self._publish(offers)
        self.tried.set()
        log.info("server %r: connected, protocol %s", self.spec.name, connection.client.protocol_version)

    def _learn(self, error: Exception) -> None:
        """Servers of the first MCP releases die of the question which protocol they speak: next time, do not ask.

        A server may have died for another reason, so the time after that it is asked again.
        """
        died = any(isinstance(leaf, MCPError) and leaf.code == CONNECTION_CLOSED for leaf in leaves(error))
        if died and self.spec.options.protocol == "auto" and isinstance(self.spec.transport, Stdio):
            self._dies_when_probed = not self._dies_when_probed

    async def _publish(self, offers: Offers) -> None:
        new = offers != self._offers
        if new:
            # To check a thousand schemas takes seconds, in which a loop that stood still would lose its leases.
            self.catalog = await asyncio.to_thread(to_catalog, self.spec, offers)
            self._offers = offers
        self._reach.reached(news=new)
