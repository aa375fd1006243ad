"""What the handler needs of others, and what it tells those who count."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from plugins_contract.catalog import ToolEntry
from plugins_contract.ledger import Delivery
from plugins_contract.ledger.replies import Completed, Duplicate, Stale, Started
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallProgress, ToolOutcome
from plugins_mcp.mcp import CallResult, Flight


class CallLedger(Protocol):
    """The ledger as a worker writes it: see `plugins_contract.ledger.WorkerLedger`."""

    async def pass_on(self, delivery: Delivery, *, lease_ms: int) -> bool:
        """Leave a call that has not begun to other workers. False when START is to be asked."""
        ...

    async def start(self, delivery: Delivery, *, max_starts: int, expired: ToolOutcome, lease_ms: int) -> Started:
        """The durable mark before any byte goes to an MCP server."""
        ...

    async def progress(self, request: ToolCallRequested, fence: int, progress: CallProgress) -> bool:
        """Pass on progress. False when the call is not ours any more."""
        ...

    async def complete(
        self, delivery: Delivery, fence: int, outcome: ToolOutcome, *, dead_reason: str = ""
    ) -> Completed | Stale | Duplicate:
        """Make the call terminal."""
        ...

    async def release(self, delivery: Delivery, fence: int, *, lease_ms: int) -> Completed | Stale:
        """Give a call back that was provably not sent."""
        ...


class Leases(Protocol):
    """Keeps saying that this worker runs a call."""

    def held(
        self,
        delivery: Delivery,
        fence: int,
        *,
        since: float,
        on_cancel: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> AbstractContextManager[None]:
        """Hold the lease, which runs since the monotonic time `since`, while the context is open."""
        ...


class ToolServer(Protocol):
    """One MCP server that tools can be called on."""

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout_s: float,
        on_progress: Callable[[CallProgress], None] = ...,
        meta: dict[str, Any] | None = None,
        flight: Flight | None = None,
    ) -> CallResult:
        """Call `tool` once and say exactly what is known afterwards; when this is cancelled, `flight` says it."""
        ...


class ToolServers(Protocol):
    """The MCP servers of this worker."""

    def get(self, server: str) -> ToolServer | None:
        """The server of that name; None when it is not configured here."""
        ...


class NamedTools(Protocol):
    """Tools by the names under which models and other producers know them."""

    def own(self, name: str) -> ToolEntry | None:
        """The tool of that name on a server of this worker."""
        ...

    async def find(self, name: str) -> ToolEntry | None:
        """The same on any server that a worker has published; takes some seconds while servers are connected."""
        ...


class Observer(Protocol):
    """Takes facts. It must not wait and must not raise."""

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome) -> None:
        """A call was made terminal by this worker."""
        ...

    def retried(self, request: ToolCallRequested) -> None:
        """A call that is safe to repeat is run again."""
        ...

    def lease_lost(self, request: ToolCallRequested) -> None:
        """A running call was given up, because another worker may have it by now."""
        ...
