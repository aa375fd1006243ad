"""What MCP servers offer, as workers publish it and the engine reads it."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from plugins_contract.messages import ExecutionClass
from plugins_contract.sessions import SessionMode


class ServerState(StrEnum):
    """The state of a worker's connection to one MCP server."""

    CONNECTING = "connecting"
    """Neither listed nor failed since the worker's start."""
    READY = "ready"
    FAILED = "failed"
    """Not connected; the worker keeps trying."""
    DISABLED = "disabled"
    """Not used: its configuration is invalid or disables it."""


class BreakerState(StrEnum):
    """The state of a worker's circuit breaker for one MCP server."""

    CLOSED = "closed"
    """Calls are sent."""
    OPEN = "open"
    """Calls are refused at once, until the server is tried again."""
    HALF_OPEN = "half-open"
    """The server is being tried again."""


class ApprovalPolicy(StrEnum):
    """Which calls wait until a person has approved them."""

    NEVER = "never"
    DESTRUCTIVE = "destructive"
    """Calls of tools that may be destructive."""
    ALWAYS = "always"


class _Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    pass


class IconEntry(_Wire, frozen=True, kw_only=True):
    """An icon, by its address: `https:`, or an image in the address itself (`data:`). Nothing has fetched it."""

    src: str
    mime_type: str | None = None
    sizes: tuple[str, ...] = ()


class ToolEntry(_Wire, frozen=True, kw_only=True):
    """One tool. `name` is what the model sees, `tool` what the server calls it, `alias` what the operator calls it
    instead, if anything. Rights, choices, pins and requests speak of `tool`.

    A tool that is not `for_model` is for the server's own page only: it is never offered to, found by or run for a
    model. `output_schema`, `icons` and `meta` are the server's, for pages and other programs. `timeout_ms` is the total
    time a call may take; None means the engine's default. `approval` is the policy that the tool falls under; `never`
    needs no approval.
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
    alias: str = ""
    for_model: bool = True
    output_schema: dict[str, Any] | None = None
    icons: tuple[IconEntry, ...] = ()
    meta: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """What models call it at its server."""
        return self.alias or self.tool


class Quarantined(_Wire, frozen=True, kw_only=True):
    """A tool that is not offered, and why: one invalid schema would fail every request to the model."""

    tool: str
    reason: str


class ResourceEntry(_Wire, frozen=True, kw_only=True):
    """A resource, or with `template` a resource template (RFC 6570)."""

    uri: str
    name: str
    title: str | None = None
    description: str = ""
    mime_type: str | None = None
    template: bool = False


class PromptArgument(_Wire, frozen=True, kw_only=True):
    """An argument of a prompt."""

    name: str
    description: str = ""
    required: bool = False


class PromptEntry(_Wire, frozen=True, kw_only=True):
    """A prompt that the server offers. `arguments` are the names of its `fields`."""

    name: str
    title: str | None = None
    fields: tuple[PromptArgument, ...] = ()
    description: str = ""
    arguments: tuple[str, ...] = ()


class ServerCatalog(_Wire, frozen=True, kw_only=True):
    """Everything that one MCP server offers. `session`: which calls share its state."""

    server: str
    session: SessionMode = SessionMode.SHARED
    title: str | None = None
    version: str | None = None
    icons: tuple[IconEntry, ...] = ()
    instructions: str | None = None
    tools: tuple[ToolEntry, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    resources: tuple[ResourceEntry, ...] = ()
    prompts: tuple[PromptEntry, ...] = ()
    left_out: int = 0
    """How many resources and prompts the server lists beyond those that are kept."""

    def encoded(self) -> bytes:
        """As JSON; equal catalogs are equal bytes."""
        return msgspec.json.encode(self, order="deterministic")


def decode_catalog(data: bytes) -> ServerCatalog:
    """The catalog in `data`, decoded tool by tool: in a thread, 16 MiB of them stop no other thread for 20 ms.

    Raises:
        NOT_READABLE: it is no catalog.
    """
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    tools = msgspec.json.decode(fields.pop("tools", b"[]"), type=list[msgspec.Raw])
    rest = msgspec.json.decode(msgspec.json.encode(fields), type=ServerCatalog)
    return msgspec.structs.replace(rest, tools=tuple(msgspec.json.decode(tool, type=ToolEntry) for tool in tools))


class ServerHeartbeat(_Wire, frozen=True, kw_only=True):
    """One worker's view of one server. Times are Unix milliseconds on the clock of Redis.

    `retry_at`: when a server that failed is tried again; None while it works. `catalog`: the digest of the worker's
    catalog of the server (`trust.digest_of`); None without one, and from workers that sign nothing. `sessions` and
    `children`: how many sessions and child processes of the server the worker has.
    """

    state: ServerState
    at: int
    catalog: str | None = None
    error: str | None = None
    breaker: BreakerState = BreakerState.CLOSED
    retry_at: int | None = None
    sessions: int = 0
    children: int = 0


def named(name: str, tools: Iterable[ToolEntry]) -> list[ToolEntry]:
    """The tool that has this name in the catalog; where none has, the tools that their servers or operators call so,
    by name."""
    tools = sorted(tools, key=lambda tool: tool.name)
    return [tool for tool in tools if tool.name == name] or [tool for tool in tools if name in (tool.label, tool.tool)]


MOST_NAMED = 20


def choice_of(tools: Sequence[ToolEntry]) -> str:
    """The names of tools between which a caller must choose, MOST_NAMED at most."""
    names = [tool.name for tool in tools[:MOST_NAMED]]
    return " or ".join([*names, f"{len(tools) - MOST_NAMED} more"] if len(tools) > MOST_NAMED else names)


HEARTBEAT_SECONDS = 5.0
"""The interval of a worker's heartbeats."""
HEARTBEAT_STALE_MS = 20_000
"""The worker of a heartbeat older than this is regarded as gone."""


MAX_NAME_LENGTH = 64
_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_-]")


def exposed_name(server: str, tool: str) -> str:
    """The name under which `tool` of `server` is shown to models: `server__tool`, at most 64 characters.

    Providers accept `[a-zA-Z0-9_-]{1,64}`. A name that does not fit, or that another pair could produce as well, ends
    with a hash of the pair. So a name depends on its own server and tool only.
    """
    plain = f"{server}__{tool}"
    safe = _NOT_ALLOWED.sub("_", plain)
    # "a__b" + "c" and "a" + "b__c" would collide: the separator must be the first double underscore of the name.
    ambiguous = "__" in server or server.endswith("_") or tool.startswith("_")
    if safe == plain and len(plain) <= MAX_NAME_LENGTH and not ambiguous:
        return plain
    digest = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:8]
    return f"{safe[: MAX_NAME_LENGTH - 9]}_{digest}"
