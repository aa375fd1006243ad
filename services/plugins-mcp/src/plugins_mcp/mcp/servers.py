"""All MCP servers of this worker, and their states."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from plugins_contract.catalog import BreakerState, ServerCatalog, ServerState
from plugins_mcp.mcp.circuit_breaker import ConnectionPolicy
from plugins_mcp.mcp.own_sessions import OwnSessions, SessionsOfWorker
from plugins_mcp.mcp.server import McpServer
from plugins_mcp.mcp.spec import BrokenServer, ServerSpec
from plugins_mcp.mcp.transport_options import Stdio
from plugins_mcp.mcp.watched import Updates, Watched


@dataclass(frozen=True)
class ServerHealth:
    """The state of one server, for health and heartbeats.

    `retry_at`: when an unreachable server is tried again, in seconds of the monotonic clock.
    """

    state: ServerState
    error: str | None = None
    breaker: BreakerState = BreakerState.CLOSED
    retry_at: float | None = None
    sessions: int = 0
    children: int = 0

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
        updates: Updates | None = None,
        max_sessions: int = 64,
    ) -> None:
        """`changed` is called with a server's name after its state or its catalog changed; it must not block. `updates`
        gets what they say of resources.

        At most `max_sessions` are open at those servers that keep state, over all of them.
        """
        super().__init__()
        self._updates = updates or Updates()
        self._broken = {server.name: server for server in broken}
        self._changed = changed
        self._policy = policy or ConnectionPolicy()
        self._starting = asyncio.Semaphore(self._policy.starting_children)
        self._sessions = SessionsOfWorker(max_sessions)
        self.stateful = self._sessions.servers
        """The sessions of those that keep state, which run their calls."""
        for spec in specs:
            self._add(spec)
        self._owners: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Run the owner tasks of all servers until `stop`, or until cancelled."""
        async with asyncio.TaskGroup() as self._owners:
            for server in self.values():
                self._own(server)
            await self._stopping.wait()

    def replace(self, old: Iterable[ServerSpec], new: Iterable[ServerSpec], broken: Iterable[BrokenServer]) -> None:
        """Take the servers `new` in the place of `old`. Those that are in both keep their sessions and processes.

        Calls that run at one of the others end there, and it is stopped after them.
        """
        before, after = ({spec.name: spec for spec in specs} for specs in (old, new))
        self._broken = {server.name: server for server in broken}
        for name in before.keys() - after.keys():
            self._retire(self.pop(name))
            self._changed(name)
        for name, spec in after.items():
            if spec == before.get(name):
                continue
            if name in before:
                self._retire(self[name])
            self._own(self._add(spec))
            self._changed(name)

    def _add(self, spec: ServerSpec) -> McpServer:
        watched = Watched(spec.name, self._updates)
        server = self[spec.name] = McpServer(spec, changed=self._changed, policy=self._policy, watched=watched)
        if spec.keeps_state:
            self.stateful[spec.name] = OwnSessions(server, self._run, self._policy, self._updates, self._sessions)
        return server

    def _retire(self, server: McpServer) -> None:
        if (own := self.stateful.pop(server.spec.name, None)) is not None:
            own.stop()
        if self._owners is not None:
            self._owners.create_task(_stop_when_idle(server), name=f"mcp-servers:{server.spec.name} retires")

    def _own(self, server: McpServer) -> None:
        if self._owners is not None:
            self._owners.create_task(self._run(server), name=f"mcp-servers:{server.spec.name}")
            if (own := self.stateful.get(server.spec.name)) is not None:
                self._owners.create_task(own.run(), name=f"mcp-servers:sessions of {server.spec.name}")

    async def _run(self, server: McpServer) -> None:
        is_child = isinstance(server.spec.transport, Stdio)
        async with asyncio.TaskGroup() as group, self._starting if is_child else nullcontext():
            group.create_task(server.run(), name=f"mcp-servers:{server.spec.name} runs")
            if is_child:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._policy.start_share):
                        await server.attempted.wait()

    def stop(self) -> None:
        """Let `run` close every connection and return."""
        self._stopping.set()
        for each in (*self.values(), *self.stateful.values()):
            each.stop()

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
        usable = {name: _health(server, self.stateful.get(name, ())) for name, server in self.items()}
        unusable = {name: ServerHealth(ServerState.DISABLED, server.reason) for name, server in self._broken.items()}
        return usable | unusable


async def _stop_when_idle(server: McpServer) -> None:
    await server.connection.idle.wait()
    server.stop()


def _health(server: McpServer, own: Collection[str]) -> ServerHealth:
    open_ = int(server.connection.session is not None) + len(own)
    children = open_ if isinstance(server.spec.transport, Stdio) else 0
    breaker = server.breaker
    return ServerHealth(server.state, server.last_error, breaker.state, breaker.retry_at, open_, children)
