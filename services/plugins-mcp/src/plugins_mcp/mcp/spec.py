"""The configuration of one MCP server. No secret is shown in a `repr`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from urllib.parse import urlsplit

from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.messages import ExecutionClass
from plugins_contract.sessions import SessionMode
from plugins_mcp.mcp.transport_options import Stdio, Transport

# What looks like a key: the server may have it from elsewhere than its configuration.
_CREDENTIALS = re.compile(
    r"\b(?:sk|pk|gsk|key|xai|ghp|gho|ghs|github_pat|glpat|xox[abp])[-_][\w*.-]{8,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|(?<=://)[^/\s@]+(?=@)"
    r"|(?i:(?<=bearer )|(?<=basic ))\S+"
    r"|(?i:(?<=password=)|(?<=password: )|(?<=token=)|(?<=token: )|(?<=secret=)|(?<=secret: )|(?<=key=)|(?<=key: ))\S+"
)
_SOCKET = r"\('[0-9A-Fa-f.:%\w]+', \d+(?:, \d+)*\)|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}:\d+|\[[0-9A-Fa-f:]+\](?::\d+)?"
"""An address of a socket, as errors of the operating system and of HTTP clients write it."""


def without_credentials(text: str) -> str:
    """`text` without what looks like a credential."""
    return _CREDENTIALS.sub("***", text)


def _no_tools() -> Mapping[str, "ToolOptions"]:
    return MappingProxyType({})


@dataclass(frozen=True)
class ToolOptions:
    """The operator's options for one tool; None means that the server's options apply.

    `name` and `description` stand in the place of the server's own in what models are offered.
    """

    timeout_ms: int | None = None
    idle_timeout_ms: int | None = None
    execution_class: ExecutionClass | None = None
    approval: ApprovalPolicy | None = None
    disabled: bool = False
    name: str | None = None
    description: str | None = None


@dataclass(frozen=True)
class ServerOptions:
    """The operator's options for one server. Times are milliseconds.

    `trust`: the server's annotations (read-only, idempotent, destructive) are believed. `approval`: which calls a
    person has to approve; None means those of tools that declare themselves destructive, unless the server is trusted.
    `protocol`: "auto", "legacy" or a version. `timeout_ms`: the total time of a call; None means the engine's setting.
    `idle_timeout_ms`: how long a call may run without reporting progress; None means no limit, because most tools never
    report any. Progress extends the idle timeout, never the total.
    `session`: which calls share the server's state. Where not all do, a worker opens at most `max_sessions`, of one
    subject at most `max_sessions_per_subject`, and ends one that was not used for `session_idle_ms`.
    `addresses`: hosts, with ports, to which the server may send people although they are not public.
    """

    trust: bool = False
    approval: ApprovalPolicy | None = None
    timeout_ms: int | None = None
    idle_timeout_ms: int | None = None
    connect_timeout_ms: int = 30_000
    concurrency: int = 16
    protocol: str = "auto"
    session: SessionMode = SessionMode.SHARED
    max_sessions: int = 32
    max_sessions_per_subject: int = 16
    session_idle_ms: int = 600_000
    addresses: frozenset[str] = frozenset()
    tools: Mapping[str, ToolOptions] = field(default_factory=_no_tools)

    def tool(self, name: str) -> ToolOptions:
        """The options of one tool, by its name on the server."""
        return self.tools.get(name, ToolOptions())

    def idle_limit(self, name: str) -> float | None:
        """For how many seconds a call of this tool may run without progress; None means no limit."""
        limit = self.tool(name).idle_timeout_ms or self.idle_timeout_ms
        return limit / 1000 if limit is not None else None


@dataclass(frozen=True)
class ServerSpec:
    """One usable server. `secrets` are the strings that `redact` removes from every text that is shown.

    `credentials` are those of them that the configuration names as such. The others, such as a time zone, may be a
    proper part of an answer. `asks`: its sessions declare that questions are answered.
    """

    name: str
    transport: Transport
    options: ServerOptions = ServerOptions()
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    credentials: frozenset[str] = field(default=frozenset(), repr=False)
    asks: bool = True

    @property
    def keeps_state(self) -> bool:
        """Whether not all calls share its state."""
        return self.options.session is not SessionMode.SHARED

    def redact(self, text: str) -> str:
        """`text` without the secrets of this server."""
        return _without(self.secrets, text)

    def redact_answer(self, text: str) -> str:
        """`text` of an answer without the credentials of this server."""
        return _without(self.credentials, text)

    def redact_for_users(self, text: str) -> str:
        """`text` without the secrets and without the addresses of this server, which are for operators."""
        text = self.redact(text)
        return self._addresses.sub("***", text) if self._addresses else text

    @cached_property
    def _addresses(self) -> "re.Pattern[str] | None":
        if isinstance(self.transport, Stdio):
            return None
        host = re.escape(urlsplit(self.transport.url).hostname or "")
        # A name without a dot may be an ordinary word: only where a port or quotes show that it is a host.
        alone = rf"(?<![\w.-]){host}(?::\d+)?(?![\w-])" if "." in host else rf"(?<![\w.-]){host}:\d+|'{host}'"
        return re.compile(f"{_SOCKET}|{alone}", re.IGNORECASE)


def _without(values: frozenset[str], text: str) -> str:
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "***")
    return text


@dataclass(frozen=True)
class BrokenServer:
    """A server that is not used: its entry is wrong, a variable is undefined, or its operator has disabled it."""

    name: str
    reason: str
    disabled: bool = False
