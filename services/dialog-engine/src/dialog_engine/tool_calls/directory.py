"""The tools there are, with the servers they come from."""

from dataclasses import dataclass
from typing import Protocol

from dialog_engine.tool_calls.ports import ToolSource
from plugins_contract.catalogue import BreakerState, ServerCatalogue, ServerState


@dataclass(frozen=True, slots=True)
class Refused:
    """A tool of a server, by its own name, that one model is not offered: its provider refuses it, and says why."""

    tool: str
    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class ServerView:
    """One MCP server as the engine knows it. `workers` is how many workers have it in their configuration now.

    `breaker` and `retry_at` (Unix milliseconds) are of the worker that is best off with it. Of the tools that are
    `refused` those that no model is offered are not in the catalogue.
    """

    catalogue: ServerCatalogue
    state: ServerState
    error: str | None
    workers: int
    breaker: BreakerState = BreakerState.CLOSED
    retry_at: int | None = None
    refused: tuple[Refused, ...] = ()

    @property
    def starting(self) -> bool:
        """Whether its tools are still to come: no worker has ever listed it, and none has failed to."""
        unlisted = self.catalogue == ServerCatalogue(server=self.catalogue.server)
        return unlisted and self.state is ServerState.CONNECTING


class ToolDirectory(ToolSource, Protocol):
    """What the engine knows about tools, for people to look at."""

    @property
    def servers(self) -> tuple[ServerView, ...]:
        """Every server that is in use, in the order of their names."""
        ...

    @property
    def workers(self) -> int:
        """How many workers report: the most that any one server has."""
        ...
