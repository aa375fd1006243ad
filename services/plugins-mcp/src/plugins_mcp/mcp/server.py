"""One MCP server: its owner task, its state, and calls to it."""

from collections.abc import Callable
from typing import Any

from plugins_contract.catalogue import ServerCatalogue, ServerState
from plugins_contract.outcomes import CallProgress
from plugins_mcp.mcp.calls import CallResult
from plugins_mcp.mcp.spec import ServerSpec


class McpServer:
    """A connection that is kept up. `run` is its owner: the only task that opens and closes the connection."""

    spec: ServerSpec
    state: ServerState
    last_error: str | None
    generation: int
    catalogue: ServerCatalogue | None

    def __init__(self, spec: ServerSpec, *, changed: Callable[[str], None] = lambda server: None) -> None: ...

    async def run(self) -> None:
        """Own the connection until `stop`: connect, keep the listing fresh, reconnect. To be run in a TaskGroup."""
        raise NotImplementedError

    def stop(self) -> None:
        """Let `run` close the connection and return."""
        raise NotImplementedError

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
        raise NotImplementedError
