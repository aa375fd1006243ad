"""The tools there are, with the servers they come from."""

from dataclasses import dataclass
from typing import Protocol

from dialog_engine.tool_calls.ports import ToolSource
from plugins_contract.catalogue import BreakerState, ServerCatalogue, ServerState


@dataclass(frozen=True, slots=True)
class ServerView:
    """One MCP server as the engine knows it. `workers` is how many workers have it in their configuration now.

    `breaker` and `retry_at` (Unix milliseconds) are of the worker that is best off with it.
    """

    catalogue: ServerCatalogue
    state: ServerState
    error: str | None
    workers: int
    breaker: BreakerState = BreakerState.CLOSED
    retry_at: int | None = None


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
