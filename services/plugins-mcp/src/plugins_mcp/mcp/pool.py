"""All configured MCP servers."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from plugins_contract.catalog import BreakerState, ServerCatalog, ServerState
from plugins_mcp.mcp.pace import Pace
from plugins_mcp.mcp.server import McpServer
from plugins_mcp.mcp.spec import BrokenServer, ServerSpec


@dataclass(frozen=True)
class ServerHealth:
    """How one server is doing, for health and heartbeats.

    `retry_at`: when a server that is in trouble is tried again, in seconds of the monotonic clock.
    """

    state: ServerState
    error: str | None = None
    breaker: BreakerState = BreakerState.CLOSED
    retry_at: float | None = None

    def shown(self) -> dict[str, object]:
        """The same for people, as JSON."""
        wait = self.retry_in()
        told: dict[str, object] = {"state": self.state, "breaker": self.breaker}
        if self.error:
            told["error"] = self.error
        return told | ({} if wait is None else {"retryInSeconds": round(wait, 1)})

    def retry_in(self) -> float | None:
        """Seconds until the server is tried again; None while there is no trouble."""
        return None if self.retry_at is None else max(0.0, self.retry_at - time.monotonic())


class McpServers:
    """The servers by name. `run` owns them all."""

    def __init__(
        self,
        specs: Iterable[ServerSpec],
        broken: Iterable[BrokenServer] = (),
        *,
        changed: Callable[[str], None] = lambda server: None,
        pace: Pace | None = None,
    ) -> None:
        """`changed` is called with a server's name after its state or its catalog changed; it must not block."""
        self._servers = {spec.name: McpServer(spec, changed=changed, pace=pace) for spec in specs}
        self._broken = {server.name: server for server in broken}
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Run the owner tasks of all servers until `stop`, or for ever."""
        async with asyncio.TaskGroup() as owners:
            for name, server in self._servers.items():
                owners.create_task(server.run(), name=f"mcp-servers:{name}")
            await self._stopping.wait()

    def stop(self) -> None:
        """Let `run` close every connection and return."""
        self._stopping.set()
        for server in self._servers.values():
            server.stop()

    async def tried(self) -> None:
        """Wait until every server has been connected or has failed once."""
        for server in self._servers.values():
            await server.tried.wait()

    def get(self, server: str) -> McpServer | None:
        """The server of that name, or None when it is not configured or not usable."""
        return self._servers.get(server)

    def catalogs(self) -> Mapping[str, ServerCatalog]:
        """What each server that was ever connected offers, by its name."""
        return {name: server.catalog for name, server in self._servers.items() if server.catalog is not None}

    def health(self) -> Mapping[str, ServerHealth]:
        """Every configured server, the broken and disabled ones included."""
        usable = {
            name: ServerHealth(server.state, server.last_error, server.breaker.state, server.breaker.retry_at)
            for name, server in self._servers.items()
        }
        unusable = {name: ServerHealth(ServerState.DISABLED, server.reason) for name, server in self._broken.items()}
        return usable | unusable
