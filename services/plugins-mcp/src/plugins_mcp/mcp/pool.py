"""All configured MCP servers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from plugins_contract.catalogue import ServerCatalogue, ServerState
from plugins_mcp.mcp.server import McpServer
from plugins_mcp.mcp.spec import BrokenServer, ServerSpec


@dataclass(frozen=True)
class ServerHealth:
    """How one server is doing, for health and heartbeats."""

    state: ServerState
    error: str | None = None


class McpServers:
    """The servers by name. `run` owns them all."""

    def __init__(
        self,
        specs: Iterable[ServerSpec],
        broken: Iterable[BrokenServer] = (),
        *,
        changed: Callable[[str], None] = lambda server: None,
    ) -> None: ...

    async def run(self) -> None:
        """Run the owner tasks of all servers until `stop`, or for ever."""
        raise NotImplementedError

    def stop(self) -> None:
        """Let `run` close every connection and return."""
        raise NotImplementedError

    async def tried(self) -> None:
        """Wait until every server has been connected or has failed once."""
        raise NotImplementedError

    def get(self, server: str) -> McpServer | None:
        """The server of that name, or None when it is not configured or not usable."""
        raise NotImplementedError

    def catalogues(self) -> Mapping[str, ServerCatalogue]:
        """What each server that was ever connected offers, by its name."""
        raise NotImplementedError

    def health(self) -> Mapping[str, ServerHealth]:
        """Every configured server, the broken and disabled ones included."""
        raise NotImplementedError
