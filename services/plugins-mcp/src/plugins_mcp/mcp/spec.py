"""How to reach one MCP server and how far to trust it. Nothing secret shows in a `repr`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.messages import ExecutionClass


def _no_strings() -> Mapping[str, str]:
    return MappingProxyType({})


def _no_tools() -> Mapping[str, "ToolOptions"]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Stdio:
    """A child process that speaks on its standard streams.

    Its environment is a short list of harmless variables (HOME, PATH, …) plus `env`; nothing else is inherited.
    """

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=_no_strings, repr=False)
    cwd: str | None = None


@dataclass(frozen=True)
class Http:
    """Streamable HTTP. The URL may carry a key in its query, so it is kept out of the `repr` as well."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=_no_strings, repr=False)


@dataclass(frozen=True)
class Sse:
    """The HTTP+SSE transport of 2024, which old servers still speak."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=_no_strings, repr=False)


Transport = Stdio | Http | Sse


@dataclass(frozen=True)
class ToolOptions:
    """What the operator says about one tool; None leaves it to the server's options."""

    timeout_ms: int | None = None
    idle_timeout_ms: int | None = None
    execution_class: ExecutionClass | None = None
    approval: ApprovalPolicy | None = None
    disabled: bool = False


@dataclass(frozen=True)
class ServerOptions:
    """What the operator says about one server. Times are milliseconds.

    `trust` believes the server's annotations (read-only, idempotent, destructive). `approval` says which calls a person
    has to approve before they are run. `protocol` is "auto", "legacy" or a version.
    `timeout_ms` is the total time of a call; None leaves it to the engine's setting. `idle_timeout_ms` is how long a
    call may go without reporting progress; None sets no limit, because most tools never report any: their silence says
    nothing. Progress puts off the idle limit, never the total.
    """

    trust: bool = False
    approval: ApprovalPolicy = ApprovalPolicy.NEVER
    timeout_ms: int | None = None
    idle_timeout_ms: int | None = None
    connect_timeout_ms: int = 30_000
    concurrency: int = 8
    protocol: str = "auto"
    tools: Mapping[str, ToolOptions] = field(default_factory=_no_tools)

    def tool(self, name: str) -> ToolOptions:
        """The options of one tool, by the server's own name for it."""
        return self.tools.get(name, ToolOptions())

    def idle_limit(self, name: str) -> float | None:
        """For how many seconds a call of this tool may be silent; None for as long as it likes."""
        limit = self.tool(name).idle_timeout_ms or self.idle_timeout_ms
        return limit / 1000 if limit is not None else None


@dataclass(frozen=True)
class ServerSpec:
    """One usable server. `secrets` are the texts that must never be shown, for `redact`."""

    name: str
    transport: Transport
    options: ServerOptions = ServerOptions()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    def redact(self, text: str) -> str:
        """`text` without the secrets of this server."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


@dataclass(frozen=True)
class BrokenServer:
    """A server that is not used: its entry is wrong, a variable is undefined, or it is disabled."""

    name: str
    reason: str
