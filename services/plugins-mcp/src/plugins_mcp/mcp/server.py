"""One MCP server and the task that owns its connection."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from mcp import MCPError
from mcp.types import CONNECTION_CLOSED

from plugins_contract.catalog import ApprovalPolicy, ServerCatalog, ServerState, ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallProgress
from plugins_mcp.mcp.calls import Answered, CallResult, NotSent, Rejected, SendState, TimedOut
from plugins_mcp.mcp.circuit_breaker import CircuitBreaker, ConnectionPolicy
from plugins_mcp.mcp.error_classification import ServerExitedError, describe_error, is_expected, leaf_errors
from plugins_mcp.mcp.kept import kept_of
from plugins_mcp.mcp.listing import Listing, to_catalog
from plugins_mcp.mcp.policies import approval
from plugins_mcp.mcp.redaction import redacted, redacted_progress, without_secrets
from plugins_mcp.mcp.renaming import renamed
from plugins_mcp.mcp.server_connection import ServerConnection
from plugins_mcp.mcp.session import Session
from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.stdio import ChildDiagnostics
from plugins_mcp.mcp.transport_options import Stdio
from plugins_mcp.mcp.watched import Updates, Watched

log = logging.getLogger(__name__)


class McpServer:
    """A server that is kept connected. `run` is the owner: the only task that opens and closes its sessions.

    `catalog` is what may be offered and called, also while it is unreachable. A trusted server offers nothing, and its
    calls are not sent, until `review` was given what of its listing is accepted. `generation` counts its sessions.
    `attempted` is set once what the server offers is known, it has failed for the first time, or it is stopped.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        changed: Callable[[str], None] = lambda server: None,
        policy: ConnectionPolicy | None = None,
        watched: Watched | None = None,
    ) -> None:
        """`changed` is called with the server's name after its state or its catalog changed; it must not block."""
        self.spec = spec
        self.watched = Watched(spec.name, Updates()) if watched is None else watched
        self.generation = 0
        self.listed: ServerCatalog | None = None  # everything in its last listing
        self.catalog: ServerCatalog | None = None
        self._offered: Mapping[str, ToolEntry] = {}  # the tools of `catalog`
        self._hidden: frozenset[str] = frozenset()  # from models
        self._reviewed: tuple[ServerCatalog, ServerCatalog] | None = None
        """A listing, and what of it is accepted."""
        self.attempted = asyncio.Event()
        self._known = asyncio.Event()
        """Set while `catalog` is that of the newest listing: whether a call may go is decided by it."""
        self._policy = policy or ConnectionPolicy()
        self._changed = changed
        self.connection = ServerConnection(spec, self._policy, on_change=lambda: changed(spec.name))
        self._stopping, self._stale = asyncio.Event(), asyncio.Event()
        """Set when the listing may be out of date, or the server should be checked."""
        self._listing: Listing | None = None
        self._exits_when_probed = False

    @property
    def state(self) -> ServerState:
        """The state that heartbeats and health show."""
        if self.spec.options.trust and self._reviewed is None and self.connection.status.state is ServerState.READY:
            return ServerState.CONNECTING  # nothing can be offered yet
        return self.connection.status.state

    @property
    def last_error(self) -> str | None:
        """What is wrong with the server; None when it is ready."""
        return self.connection.status.error

    @property
    def breaker(self) -> CircuitBreaker:
        """The server's circuit breaker, for reading."""
        return self.connection.breaker

    def review(self, listed: ServerCatalog, accepted: ServerCatalog) -> None:
        """Offer and run only `accepted`, the part of the listing `listed` that may be trusted."""
        if listed is self.listed:
            self._known.set()
        if self._reviewed != (listed, accepted):
            self._reviewed = (listed, accepted)
            self._offer(accepted)
            self.attempted.set()
            self._changed(self.spec.name)

    def _offer(self, catalog: ServerCatalog) -> None:
        self.catalog = renamed(self.spec, catalog)
        self._offered = {entry.tool: entry for entry in self.catalog.tools}

    async def run(self) -> None:
        """Own the connection until `stop`: connect, keep the listing up to date, reconnect. Runs in a TaskGroup."""
        self.connection.started()
        async with asyncio.TaskGroup() as group:
            owner = group.create_task(self._keep_connected(), name=f"mcp-server:{self.spec.name}")
            try:
                await self._stopping.wait()
            finally:
                self._stopping.set()
                owner.cancel()

    def stop(self) -> None:
        """Let `run` close the connection and return. Calls in progress end as `Ambiguous`."""
        self._stopping.set()
        self.attempted.set()

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        subject: str = "",
        approved: bool = False,
        timeout_s: float,
        granted_s: float | None = None,
        on_begin: Callable[[], None] = lambda: None,
        on_progress: Callable[[CallProgress], None] = lambda progress: None,
        meta: dict[str, Any] | None = None,
        send_state: SendState | None = None,
    ) -> CallResult:
        """Call `tool` once, without retries. The result holds no secret of the server's configuration.

        `subject` is the user whom the call is for: late calls count for each first. Without `approved` a tool whose
        policy asks for a person's approval is not called, whoever requests it.
        `timeout_s` is the total, with the waits for a slot and the connection. It is what is left of `granted_s`, the
        time that the call was given before it waited elsewhere: a timeout after a small part of that does not count
        against the server. `on_begin` is called when the call has its slot and a session, `on_progress` in order and
        never after the return; both must not block. Cancelling the caller cancels the call at the server; `send_state`
        then tells whether it was sent. A server whose circuit is open refuses at once.
        """
        if tool not in self._offered and self.spec.options.tool(tool).disabled:
            return Rejected(ErrorCode.DISABLED, f"the tool {tool!r} is disabled in the configuration")
        if self._stopping.is_set():
            return NotSent("this worker is shutting down")
        if self._known.is_set() and (refused := self._refused(tool, approved=approved)):
            return redacted(refused, self.spec)
        result = await self.connection.call(
            tool,
            arguments,
            subject=subject,
            known=self._known,
            refused=lambda: self._refused(tool, approved=approved),
            timeout_s=timeout_s,
            granted_s=timeout_s if granted_s is None else granted_s,
            on_begin=on_begin,
            on_progress=lambda progress: on_progress(redacted_progress(progress, self.spec)),
            meta=meta,
            send_state=send_state or SendState(),
        )
        if isinstance(result, Answered) and result.result.is_error and not self._lists(tool):
            result = Rejected(ErrorCode.TOOL_NOT_FOUND, f"the server has no tool {tool!r}")
        match result:
            case NotSent() | TimedOut(sent=True) | Rejected(code=ErrorCode.TOOL_NOT_FOUND):
                self._stale.set()  # list again: the server may be gone or hanging, or its tools may have changed
            case _:
                pass
        return await without_secrets(result, self.spec)

    def _refused(self, tool: str, *, approved: bool) -> CallResult | None:
        """Why a call is not sent. The server's tools must be known: before that each seems to need approval. One that
        is not offered may declare anything: in quarantine it always needs approval, and a trusted server's is held back
        until it is accepted as it is now."""
        if tool in self._hidden:
            return Rejected(ErrorCode.PERMISSION_DENIED, f"the tool {tool!r} is for its server's pages, not for models")
        if (entry := self._offered.get(tool)) is not None:
            asks = entry.approval is not ApprovalPolicy.NEVER
        else:
            quarantined = self.catalog.quarantined if self.catalog else ()
            why = next((each.reason for each in quarantined if each.tool == tool), None)
            if why is not None and self.spec.options.trust:
                return Rejected(ErrorCode.DISABLED, f"the tool {tool!r} is held back: it is {why}")
            asks = why is not None or approval(self.spec.options, tool, None) is not ApprovalPolicy.NEVER
        if approved or not asks:
            return None
        message = f"a person must approve calls of {tool!r}, and this one was not approved with these arguments"
        return Rejected(ErrorCode.APPROVAL_REQUIRED, f"{message}; it was not run")

    def _lists(self, tool: str) -> bool:
        return self._listing is not None and any(listed.name == tool for listed in self._listing.tools)

    async def _keep_connected(self) -> None:
        while True:
            self.connection.attempt_started()
            child = ChildDiagnostics()
            generation = self.generation
            try:
                await self._run_session(child)
                if self.spec.keeps_state:  # this only lists it: calls are in `OwnSessions`
                    await self._until_stale(self._policy.relist_stateful)
                    continue
                reason = "the connection was lost"
            except Exception as error:
                if self.generation == generation:
                    self._note_failed_handshake(error)
                    if child.exit_code is not None and is_expected(error):
                        error = ServerExitedError(child.exit_code)
                reason = describe_error(error)
                if not is_expected(error):
                    log.exception("MCP server %r: internal error in its connection", self.spec.name)
            if self._stopping.is_set():
                return  # a transport that fails while it is being closed can swallow the cancellation of this task
            if child.other_text:
                reason += f"; its standard output, which is for MCP only, has other text: '{child.other_text}'"
            self.connection.failed(reason, standard_error=child.stderr())
            self.attempted.set()
            await asyncio.sleep(self.breaker.retry_in())

    async def _run_session(self, child: ChildDiagnostics) -> None:
        """Connect, serve until the session is lost, and close it."""
        mode = "legacy" if self._exits_when_probed else self.spec.options.protocol
        session = Session(self.spec, mode, child, self._stale.set, self.watched)
        try:
            async with asyncio.timeout(self.spec.options.connect_timeout_ms / 1000) as handshake, session.opened():
                listing = await session.list_all()
                handshake.reschedule(None)
                await self._session_opened(session, listing)
                if not self.spec.keeps_state:
                    await self._serve(session)
        finally:
            self.connection.session_closed()

    async def _serve(self, session: Session) -> None:
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._keep_listed(session)), group.create_task(session.subscribe())]
            await session.ended.wait()
            self.connection.session_closed()
            for helper in helpers:
                helper.cancel()
        # Answers to earlier calls may still arrive: the session can be lost at one replica of the server only.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._policy.drain_timeout):
                await session.idle.wait()

    async def _keep_listed(self, session: Session) -> None:
        """List again after a change notification, after `relist_every`, and soon after a failure."""
        while True:
            await asyncio.sleep(self._policy.relist_gap)
            most = self._policy.relist_every
            await self._until_stale(self._listing.kept_for(most) if self._listing else most)
            self._stale.clear()
            while not await self._relist(session):
                await asyncio.sleep(self.breaker.retry_in())
                self.connection.attempt_started()

    async def _until_stale(self, seconds: float) -> None:
        with suppress(TimeoutError):  # `wait_for` of Python 3.11 can swallow a cancellation
            async with asyncio.timeout(seconds):
                await self._stale.wait()

    async def _relist(self, session: Session) -> bool:
        """Whether the server could be listed. If not, the session is kept: calls in progress may still succeed."""
        try:
            async with asyncio.timeout(self._policy.list_timeout):
                listing = await session.list_all()
        except (TimeoutError, MCPError, ValueError) as error:
            if isinstance(error, TimeoutError) and session.idle.is_set():
                session.lost()  # the server hangs, and no call waits for it: reconnect
            self.connection.failed(describe_error(error))
        else:
            await self._publish(listing)
            return True
        return False

    async def _session_opened(self, session: Session, listing: Listing) -> None:
        self.generation += 1
        self._stale.clear()
        self.connection.session_opened(session)
        await self._publish(listing)
        if self.catalog is not None:
            self.attempted.set()
        log.info("MCP server %r: connected, protocol %s", self.spec.name, session.client.protocol_version)

    def _note_failed_handshake(self, error: Exception) -> None:
        """Skip the protocol probe every other time where the server may have exited because of it, as old ones do."""
        closed = any(isinstance(leaf, MCPError) and leaf.code == CONNECTION_CLOSED for leaf in leaf_errors(error))
        if closed and self.spec.options.protocol == "auto" and isinstance(self.spec.transport, Stdio):
            self._exits_when_probed = not self._exits_when_probed

    async def _publish(self, listing: Listing) -> None:
        changed, self._listing = listing != self._listing, listing
        if changed:
            # Checking a thousand schemas takes seconds. In the event loop that would cost the worker its leases.
            self.listed = await asyncio.to_thread(to_catalog, self.spec, listing)
            self._hidden = frozenset(tool.name for tool in listing.tools if not kept_of(tool).for_model)
            if self.spec.options.trust:
                self._known.clear()
            else:
                self._offer(self.listed)
                self._known.set()
        self.connection.listed(changed=changed)
