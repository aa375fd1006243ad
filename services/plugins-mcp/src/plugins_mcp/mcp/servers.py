"""All MCP servers of this worker, and their states."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from plugins_contract.catalog import BreakerState, ServerCatalog, ServerState
from plugins_mcp.mcp.circuit_breaker import ConnectionPolicy
from plugins_mcp.mcp.server import McpServer
from plugins_mcp.mcp.spec import BrokenServer, ServerSpec


@dataclass(frozen=True)
class ServerHealth:
    """The state of one server, for health and heartbeats.

    `retry_at`: when an unreachable server is tried again, in seconds of the monotonic clock.
    """

    state: ServerState
    error: str | None = None
    breaker: BreakerState = BreakerState.CLOSED
    retry_at: float | None = None

    def as_json(self) -> dict[str, object]:
        """The same as a JSON object."""
        wait = self.retry_in()
        fields: dict[str, object] = {"state": self.state, "breaker": self.breaker}
        if self.error:
            fields["error"] = self.error
        return fields | ({} if wait is None else {"retryInSeconds": round(wait, 1)})

    def retry_in(self) -> float | None:
        """Seconds until the server is tried again; None while nothing is wrong."""
        return None if self.retry_at is None else max(0.0, self.retry_at - time.monotonic())


class McpServers(dict[str, McpServer]):
    """The configured servers that are usable, by name. `run` owns all of them."""

    def __init__(
        self,
        specs: Iterable[ServerSpec],
        broken: Iterable[BrokenServer] = (),
        *,
        changed: Callable[[str], None] = lambda server: None,
        policy: ConnectionPolicy | None = None,
    ) -> None:
        """`changed` is called with a server's name after its state or its catalog changed; it must not block."""
        super().__init__({spec.name: McpServer(spec, changed=changed, policy=policy) for spec in specs})
        self._broken = {server.name: server for server in broken}
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Run the owner tasks of all servers until `stop`, or until cancelled."""
        async with asyncio.TaskGroup() as owners:
            for name, server in self.items():
                owners.create_task(server.run(), name=f"mcp-servers:{name}")
            await self._stopping.wait()

    def stop(self) -> None:
        """Let `run` close every connection and return."""
        self._stopping.set()
        for server in self.values():
            server.stop()

    async def attempted(self) -> None:
        """Wait until every server was connected or has failed once."""
        for server in self.values():
            await server.attempted.wait()

    @property
    def names(self) -> Sequence[str]:
        """The names of the servers that are usable."""
        return sorted(self)

    def trusted(self) -> Iterable[McpServer]:
        """The servers whose annotations are believed."""
        return [server for server in self.values() if server.spec.options.trust]

    def catalogs(self) -> Mapping[str, ServerCatalog]:
        """The catalog of each server that was ever connected, by server name."""
        return {name: server.catalog for name, server in self.items() if server.catalog is not None}

    def health(self) -> Mapping[str, ServerHealth]:
        """Every configured server, including the broken and disabled ones."""
        usable = {
            name: ServerHealth(server.state, server.last_error, server.breaker.state, server.breaker.retry_at)
            for name, server in self.items()
        }
        unusable = {name: ServerHealth(ServerState.DISABLED, server.reason) for name, server in self._broken.items()}
        return usable | unusable
