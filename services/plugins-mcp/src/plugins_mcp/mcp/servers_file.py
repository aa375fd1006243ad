"""The servers file (`mcp.json`): from the many spellings in use to `ServerSpec`s.

The format is the one of other MCP clients; our own options are under the key `callstream` of each server.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from plugins_contract.catalog import MAX_NAME_LENGTH, ApprovalPolicy
from plugins_contract.messages import ExecutionClass
from plugins_contract.sessions import SessionMode
from plugins_mcp.errors import ServersFileError
from plugins_mcp.mcp.fields import (
    FieldError,
    Interpolator,
    UndefinedVariableError,
    a_bool,
    a_count,
    a_string,
    an_object,
    milliseconds,
    one_of,
    only,
    strings,
)
from plugins_mcp.mcp.known_servers import mode_of
from plugins_mcp.mcp.spec import BrokenServer, ServerOptions, ServerSpec, ToolOptions
from plugins_mcp.mcp.transport_options import Http, Transport, kind_of, options_of, read_transport, secrets_of

OPTIONS = "callstream"
_COMMON = frozenset({"type", "transport", "disabled", "enabled", OPTIONS})
MAX_DESCRIPTION_CHARS = 4_096
_SHORTEST_SECRET = 4
"""Shorter values are not redacted: removing every "1" would make errors unreadable and protect nothing."""

_SHORTEST_CREDENTIAL = 8
"""Shorter values stay in answers, in which they may be words."""


@dataclass(frozen=True)
class ServersFile:
    """The content of a file: usable servers, broken ones with the reason, and warnings that prevent nothing."""

    servers: tuple[ServerSpec, ...] = ()
    broken: tuple[BrokenServer, ...] = ()
    warnings: tuple[str, ...] = ()


def read_servers_file(path: Path, environment: Mapping[str, str]) -> ServersFile:
    """The servers in the file at `path`; `${VAR}` is looked up in `environment`.

    Raises:
        ServersFileError: the file as a whole cannot be used. A mistake in one entry makes only that server broken.
    """
    servers: list[ServerSpec] = []
    broken: list[BrokenServer] = []
    document, duplicates = _decoded(path)
    warnings = [
        f"{path}: the key {key!r} is twice in one object, and the last one counts: keep one" for key in duplicates
    ]
    for name, entry in _entries(path, document).items():
        try:
            if is_disabled(entry):
                broken.append(BrokenServer(name, "disabled in the configuration", disabled=True))
                continue
            spec, ignored = parse_entry(name, entry, environment)
        except (FieldError, UndefinedVariableError) as error:
            broken.append(BrokenServer(name, str(error)))
        else:
            servers.append(spec)
            warnings += (f"server {name!r}: ignored the field {key!r}" for key in ignored)
    return ServersFile(tuple(servers), tuple(broken), tuple(warnings))


def single_server(endpoint_url: str, api_key: str | None = None) -> ServerSpec:
    """The server `default` at an endpoint, reached with a bearer token when there is a key.

    Raises:
        ValueError: the address is not an http(s) URL.
    """
    headers = {"Authorization": f"Bearer {api_key.strip()}"} if api_key and api_key.strip() else {}
    entry = {"url": endpoint_url.strip(), "headers": headers}
    return spec_of("default", read_transport(Http, entry, lambda text, where: text))


def _decoded(path: Path) -> tuple[Any, list[str]]:
    """The decoded file, and the keys that an object in it has twice."""
    duplicates: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        duplicates.extend(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        return dict(pairs)

    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=collect)
        json.dumps(document, ensure_ascii=False).encode()
    except FileNotFoundError as error:
        raise ServersFileError(path, "file", "it does not exist; create it or correct MCP_CONFIG") from error
    except OSError as error:
        raise ServersFileError(path, "file", f"it cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ServersFileError(path, f"byte {error.start}", "not UTF-8; save it as UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ServersFileError(path, place, f"not JSON ({error.msg}); no comments, no trailing commas") from error
    except RecursionError as error:
        raise ServersFileError(path, "file", "nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ServersFileError(
            path, "file", "a string in it has a lone surrogate, such as \\ud83d; remove it"
        ) from error
    return document, duplicates


def _entries(path: Path, document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise ServersFileError(path, "top level", 'must be an object such as {"mcpServers": {}}')
    fields = cast("dict[str, Any]", document)
    present = [key for key in ("mcpServers", "servers") if key in fields]
    if len(present) != 1:
        what = "has both `mcpServers` and `servers`; keep one" if present else "has no `mcpServers`; add it"
        raise ServersFileError(path, "top level", what)
    entries = fields[present[0]]
    if not isinstance(entries, dict):
        raise ServersFileError(path, present[0], "must be an object that maps server names to entries")
    if "" in entries:
        raise ServersFileError(path, present[0], "has a server without a name; give it one")
    return cast("dict[str, Any]", entries)


# One entry.


def is_disabled(entry: Any) -> bool:
    """Whether the entry disables the server. Nothing else in it is checked."""
    fields = an_object(entry, "the entry")
    return a_bool(fields.get("disabled", False), "disabled") or not a_bool(fields.get("enabled", True), "enabled")


def parse_entry(name: str, entry: Any, environment: Mapping[str, str]) -> tuple[ServerSpec, tuple[str, ...]]:
    """The server in `entry`, and the names of fields that are ignored.

    Raises:
        FieldError: a field is wrong; the text names it.
        UndefinedVariableError: a variable has no value; the text names it.
    """
    fields = an_object(entry, "the entry")
    fill = Interpolator(environment)
    kind = kind_of(fields)
    transport = read_transport(kind, fields, fill)
    used = _COMMON | options_of(kind)
    ignored = tuple(key for key in fields if key not in used)
    options = _options(fields.get(OPTIONS, {}), mode_of(transport))
    spec = spec_of(name, transport, options, fill.used, fill.credentials)
    return spec, ignored


def spec_of(
    name: str,
    transport: Transport,
    options: ServerOptions | None = None,
    more_secrets: Collection[str] = (),
    more_credentials: Collection[str] = (),
) -> ServerSpec:
    """A spec with the sets of its values that are secret, and of those that are credentials."""
    secrets, credentials = secrets_of(transport)
    return ServerSpec(
        name,
        transport,
        options or ServerOptions(),
        _at_least(_SHORTEST_SECRET, secrets.union(more_secrets)),
        _at_least(_SHORTEST_CREDENTIAL, credentials.union(more_credentials)),
    )


_TIMES = frozenset({"timeoutMs", "idleTimeoutMs", "connectTimeoutMs"})
_SESSIONS = frozenset({"session", "maxSessions", "maxSessionsPerSubject", "sessionIdleMs"})
_KNOWN = {"trust", "approval", "concurrency", "protocol", "tools", "addresses"} | _TIMES | _SESSIONS


def _options(value: Any, usual_mode: SessionMode) -> ServerOptions:
    fields = an_object(value, OPTIONS)
    only(fields, _KNOWN, OPTIONS)
    tools = an_object(fields.get("tools", {}), f"{OPTIONS}.tools")
    default = ServerOptions()
    return ServerOptions(
        trust=a_bool(fields.get("trust", False), f"{OPTIONS}.trust"),
        approval=one_of(ApprovalPolicy, fields.get("approval"), f"{OPTIONS}.approval") or default.approval,
        timeout_ms=_milliseconds(fields, "timeoutMs", OPTIONS),
        idle_timeout_ms=_milliseconds(fields, "idleTimeoutMs", OPTIONS),
        connect_timeout_ms=_milliseconds(fields, "connectTimeoutMs", OPTIONS) or default.connect_timeout_ms,
        concurrency=_count(fields, "concurrency", default.concurrency),
        session=one_of(SessionMode, fields.get("session"), f"{OPTIONS}.session") or usual_mode,
        max_sessions=_count(fields, "maxSessions", default.max_sessions),
        max_sessions_per_subject=_count(fields, "maxSessionsPerSubject", default.max_sessions_per_subject),
        session_idle_ms=_milliseconds(fields, "sessionIdleMs", OPTIONS) or default.session_idle_ms,
        addresses=frozenset(each.lower() for each in strings(fields.get("addresses", []), f"{OPTIONS}.addresses")),
        protocol=_protocol(fields.get("protocol", default.protocol)),
        tools=MappingProxyType(_tools(tools)),
    )


def _tools(entries: Mapping[str, Any]) -> dict[str, ToolOptions]:
    options = {tool: _tool_options(entry, tool) for tool, entry in entries.items()}
    named: dict[str, str] = {}
    for tool, each in options.items():
        if each.name and (other := named.setdefault(each.name, tool)) != tool:
            raise FieldError(f"{OPTIONS}.tools.{tool}.name is that of {OPTIONS}.tools.{other}: choose another")
    return options


def _tool_options(value: Any, tool: str) -> ToolOptions:
    where = f"{OPTIONS}.tools.{tool}"
    fields = an_object(value, where)
    only(fields, {"timeoutMs", "idleTimeoutMs", "executionClass", "approval", "disabled", "name", "description"}, where)
    return ToolOptions(
        timeout_ms=_milliseconds(fields, "timeoutMs", where),
        idle_timeout_ms=_milliseconds(fields, "idleTimeoutMs", where),
        execution_class=one_of(ExecutionClass, fields.get("executionClass"), f"{where}.executionClass"),
        approval=one_of(ApprovalPolicy, fields.get("approval"), f"{where}.approval"),
        disabled=a_bool(fields.get("disabled", False), f"{where}.disabled"),
        name=_text(fields, "name", where, MAX_NAME_LENGTH),
        description=_text(fields, "description", where, MAX_DESCRIPTION_CHARS),
    )


def _count(fields: Mapping[str, Any], key: str, default: int) -> int:
    return a_count(fields.get(key, default), f"{OPTIONS}.{key}")


def _text(fields: Mapping[str, Any], key: str, where: str, most: int) -> str | None:
    if fields.get(key) is None:
        return None
    text = a_string(fields[key], f"{where}.{key}").strip()
    if not 0 < len(text) <= most:
        raise FieldError(f"{where}.{key} must have 1 to {most} characters")
    return text


def _milliseconds(fields: Mapping[str, Any], key: str, where: str) -> int | None:
    return milliseconds(fields[key], f"{where}.{key}") if fields.get(key) is not None else None


def _protocol(value: Any) -> str:
    where = f"{OPTIONS}.protocol"
    version = a_string(value, where)
    if version in HANDSHAKE_PROTOCOL_VERSIONS:
        return "legacy"
    if version not in ("auto", "legacy", *MODERN_PROTOCOL_VERSIONS):
        raise FieldError(f"{where} must be auto, legacy or one of {', '.join(MODERN_PROTOCOL_VERSIONS)}")
    return version


def _at_least(length: int, values: Iterable[str]) -> frozenset[str]:
    return frozenset(value for value in values if len(value) >= length)
