"""The tools there are, with the servers they come from."""

from dataclasses import dataclass
from typing import Protocol

from dialog_engine.tool_calls.ports import ToolSource
from plugins_contract.catalog import BreakerState, ServerCatalog, ServerState


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
    `refused` those that no model is offered are not in the catalog.
    """

    catalog: ServerCatalog
    state: ServerState
    error: str | None
    workers: int
    breaker: BreakerState = BreakerState.CLOSED
    retry_at: int | None = None
    refused: tuple[Refused, ...] = ()

    @property
    def starting(self) -> bool:
        """Whether no worker has reached it since its start, and none has failed to. Its tools may be known from before:
        a call of one would wait, or fail as not sent."""
        return self.state is ServerState.CONNECTING


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
