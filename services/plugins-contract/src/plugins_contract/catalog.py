"""What MCP servers offer, as workers publish it and the engine reads it."""

import hashlib
from enum import StrEnum
from typing import Any

import msgspec

from plugins_contract.messages import ExecutionClass


class ServerState(StrEnum):
    """How a worker's connection to one MCP server is doing."""

    CONNECTING = "connecting"
    """Since the worker's start it was neither listed nor failed."""
    READY = "ready"
    FAILED = "failed"
    """Not connected; the owner keeps trying."""
    DISABLED = "disabled"
    """Not to be used: its configuration is broken or says so."""


class BreakerState(StrEnum):
    """The circuit breaker of a worker for one MCP server: whether calls go to it."""

    CLOSED = "closed"
    """They do."""
    OPEN = "open"
    """They are refused at once, until it is tried again."""
    HALF_OPEN = "half-open"
    """It is being tried again."""


class ApprovalPolicy(StrEnum):
    """Which calls wait until a person has approved them."""

    NEVER = "never"
    DESTRUCTIVE = "destructive"
    """Those of tools that may destroy something."""
    ALWAYS = "always"


class _Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    pass


class ToolEntry(_Wire, frozen=True, kw_only=True):
    """One tool. `name` is what the model sees, `tool` what the server calls it.

    `timeout_ms` is the total time a call may take; None leaves it to the engine's setting. `approval` says why a call
    needs one: under which policy this tool falls; `never` needs none.
    """

    name: str
    server: str
    tool: str
    title: str | None = None
    description: str = ""
    input_schema: dict[str, Any]
    annotations: dict[str, Any] = {}
    execution_class: ExecutionClass = ExecutionClass.ONCE
    timeout_ms: int | None = None
    approval: ApprovalPolicy = ApprovalPolicy.NEVER


class Quarantined(_Wire, frozen=True, kw_only=True):
    """A tool that is left out, and why: one bad schema must not fail every request to the model."""

    tool: str
    reason: str


class ResourceEntry(_Wire, frozen=True, kw_only=True):
    """A resource, or with `template` a family of them (RFC 6570)."""

    uri: str
    name: str
    description: str = ""
    mime_type: str | None = None
    template: bool = False


class PromptEntry(_Wire, frozen=True, kw_only=True):
    """A prompt that the server offers."""

    name: str
    description: str = ""
    arguments: tuple[str, ...] = ()


class ServerCatalog(_Wire, frozen=True, kw_only=True):
    """All that one MCP server offers."""

    server: str
    title: str | None = None
    version: str | None = None
    instructions: str | None = None
    tools: tuple[ToolEntry, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    resources: tuple[ResourceEntry, ...] = ()
    prompts: tuple[PromptEntry, ...] = ()

    def digest(self) -> str:
        """Changes exactly when the content does."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]


class ServerHeartbeat(_Wire, frozen=True, kw_only=True):
    """One worker's view of one server. Times are Unix milliseconds on the clock of Redis.

    `retry_at`: when a server that is in trouble is tried again; None while there is no trouble.
    """

    state: ServerState
    at: int
    error: str | None = None
    breaker: BreakerState = BreakerState.CLOSED
    retry_at: int | None = None


HEARTBEAT_SECONDS = 5.0
"""How often a worker repeats its view."""
HEARTBEAT_STALE_MS = 20_000
"""A view older than this belongs to a worker that is gone."""
