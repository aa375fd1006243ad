"""The ports of the worker's core: what the consumer, the handler and the adopter need, and what they report."""

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from plugins_contract.catalog import ToolEntry
from plugins_contract.ledger import Delivery
from plugins_contract.ledger.replies import Completed, Duplicate, Stale, Started
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallProgress, CallStarted, ToolOutcome
from plugins_mcp.mcp import CallResult, SendState


class CallLedger(Protocol):
    """The ledger as a worker writes it: see `plugins_contract.ledger.WorkerLedger`."""

    async def pass_on(self, delivery: Delivery, *, to: str | None, lease_ms: int) -> bool:
        """Leave a call that has not started to a pool of workers, or, without one, to any.

        False when START is to decide about it.
        """
        ...

    async def start(
        self, delivery: Delivery, *, max_starts: int, expired: ToolOutcome, lease_ms: int, reported_at: str
    ) -> Started:
        """START: the durable mark before any byte is sent to an MCP server."""
        ...

    async def progress(self, request: ToolCallRequested, fence: int, report: CallStarted | CallProgress) -> bool:
        """Publish that the call was started, or its progress. False when the call belongs to another worker."""
        ...

    async def complete(
        self, delivery: Delivery, fence: int, outcome: ToolOutcome, *, dead_reason: str = ""
    ) -> Completed | Stale | Duplicate:
        """Write the outcome, which ends the call."""
        ...

    async def release(self, delivery: Delivery, fence: int, *, lease_ms: int) -> Completed | Stale:
        """Return a call that was provably not sent to the group."""
        ...


class ResultSender(Protocol):
    """Takes large results out of the way through Redis."""

    async def sent(self, request: ToolCallRequested, fence: int, outcome: ToolOutcome) -> ToolOutcome:
        """The outcome that COMPLETE carries: a short one in place of a large one that an engine keeps now."""
        ...


class PoolFinder(Protocol):
    """Which pools of workers there are, and can run a call: see `callstream_runtime.pool_directory.PoolDirectory`."""

    async def lives(self, own: str) -> bool:
        """Whether the worker with this pool of its own is running."""
        ...

    async def find(self, server: str, version: int) -> str | None:
        """A pool whose workers can run a call on that server, requested in that version; None without one."""
        ...


class Leases(Protocol):
    """Renews the leases of running calls."""

    async def reported(self) -> str:
        """The run id of the server of Redis at which this worker has reported. Waits until it has."""
        ...

    def held(
        self,
        delivery: Delivery,
        fence: int,
        *,
        since: float,
        on_cancel: Callable[[], None],
        on_lost: Callable[[], None],
        started_at: str | None = None,
    ) -> AbstractContextManager[None]:
        """Renew the lease, which started at the monotonic time `since`, while the context is open.

        Raises:
            ServerChangedError: this worker does not report at the server `started_at` any more.
        """
        ...


class ToolServer(Protocol):
    """One MCP server that tools can be called on."""

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        subject: str,
        approved: bool,
        timeout_s: float,
        granted_s: float | None = None,
        on_begin: Callable[[], None] = ...,
        on_progress: Callable[[CallProgress], None] = ...,
        meta: dict[str, Any] | None = None,
        send_state: SendState | None = None,
    ) -> CallResult:
        """Call `tool` once, without retries. After a cancellation `send_state` tells whether it was sent.

        `subject` is the user whom the call is for.
        `approved`: a person has approved these arguments. Without that a tool whose policy asks for it is not called.
        `timeout_s` is what is left of `granted_s`, the time that the call was given before it waited elsewhere.
        `on_begin` is called when the call waits for nothing but the server any more.
        """
        ...


class ToolServers(Protocol):
    """The MCP servers of this worker."""

    @property
    def stateful(self) -> Container[str]:
        """Those of them that keep state: their calls run in sessions of their own."""
        return ()

    def get(self, server: str, /) -> ToolServer | None:
        """The server with that name; None when this worker does not have it."""
        ...


class Sessions(Protocol):
    """The sessions of this worker with servers that keep state."""

    async def elsewhere(self, request: ToolCallRequested) -> str | None:
        """The pool of the worker that has the session of a call, or '' for any worker; None when the call is for this
        one, which opens the session.

        Raises `RedisUnavailable`.
        """
        ...

    def server_for(self, request: ToolCallRequested) -> ToolServer:
        """The server in the session of a call. Nothing is sent where this worker has neither that nor room for it."""
        ...


class ToolLookup(Protocol):
    """Finds tools by the names that models and other producers use."""

    def own(self, name: str) -> ToolEntry | None:
        """The tool of that name on a server of this worker."""
        ...

    async def find(self, name: str) -> Sequence[ToolEntry]:
        """The tool of that name on any published server; without one, those that their servers call so.

        May wait some seconds for servers that are still connecting.
        """
        ...


class Handler(Protocol):
    """Processes deliveries."""

    def serves(self, request: ToolCallRequested) -> bool:
        """Whether this worker has the call's server; other calls are returned to the group at once."""
        ...

    async def handle(self, delivery: Delivery) -> None:
        """Process one delivery, or leave it to other workers."""
        ...


class Adopter(Protocol):
    """Gives requests without a ledger their ledger."""

    async def adopt(self, entry: str, consumer: str, fields: dict[bytes, bytes], stream: str) -> Delivery | None:
        """The delivery of such an entry of `stream`; None when nothing more is to be done."""
        ...


class Observer:
    """Takes the facts about tool calls, and does nothing with them. Its methods must not block and must not raise.

    `processing` and what follows are called in the task of the call.
    """

    def redelivered(self, request: ToolCallRequested, how: str) -> None:
        """The request was delivered before: "takeover" from another worker, or "recovery" of a read without a reply."""

    def dead_letter(self, cause: str) -> None:
        """A request becomes a dead letter. `cause` is "producer": another producer than an engine has written a request
        that cannot be run; or "call": anything else."""

    def processing(self, request: ToolCallRequested) -> AbstractContextManager[object]:
        """The request is being processed while the context is open."""
        return nullcontext()

    def started(self, request: ToolCallRequested, starts: int, queued_ms: int) -> None:
        """The call is started for the `starts`th time, `queued_ms` after it was put on the stream."""

    def not_run(self, request: ToolCallRequested, why: str) -> None:
        """Nothing is to be done for the call."""

    def retried(self, request: ToolCallRequested, after_seconds: float, why: str) -> None:
        """The call is run again here, after a pause."""

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome) -> None:
        """This worker ended the call."""

    def lease_lost(self, request: ToolCallRequested) -> None:
        """A running call was given up, because another worker may run it by now."""
