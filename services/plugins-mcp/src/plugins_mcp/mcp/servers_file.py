"""The `mcp.json` that people already have for other clients, with our options under `callstream`."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from plugins_mcp.errors import ServersFileError
from plugins_mcp.mcp.fields import FieldError
from plugins_mcp.mcp.interpolation import UndefinedVariableError
from plugins_mcp.mcp.server_entry import http_transport, is_disabled, parse_entry, spec_of
from plugins_mcp.mcp.spec import BrokenServer, ServerSpec


@dataclass(frozen=True)
class ServersFile:
    """What a file says: usable servers, broken ones with the reason, and remarks that stop nothing."""

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
    document, twice = _decoded(path)
    warnings = [f"{path}: {key!r} is there twice in one object, and the last one counts: keep one" for key in twice]
    for name, entry in _entries(path, document).items():
        try:
            if is_disabled(entry):
                broken.append(BrokenServer(name, "disabled in the configuration"))
                continue
            spec, remarks = parse_entry(name, entry, environment)
        except (FieldError, UndefinedVariableError) as error:
            broken.append(BrokenServer(name, str(error)))
        else:
            servers.append(spec)
            warnings += (f"server {name!r}: {remark}" for remark in remarks)
    return ServersFile(tuple(servers), tuple(broken), tuple(warnings))


def single_server(endpoint_url: str, api_key: str | None = None) -> ServerSpec:
    """The server `default` at an endpoint, reached with a bearer token when there is a key.

    Raises:
        ValueError: the address is not an http(s) URL.
    """
    headers = {"Authorization": f"Bearer {api_key.strip()}"} if api_key and api_key.strip() else {}
    return spec_of("default", http_transport("http", endpoint_url.strip(), headers))


def _decoded(path: Path) -> tuple[Any, list[str]]:
    """What the file says, and the keys that an object in it has twice."""
    twice: list[str] = []

    def noted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice.extend(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        return dict(pairs)

    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=noted)
        json.dumps(document, ensure_ascii=False).encode()
    except FileNotFoundError as error:
        raise ServersFileError(path, "file", "it does not exist; create it or correct MCP_CONFIG") from error
    except OSError as error:
        raise ServersFileError(path, "file", f"it cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ServersFileError(path, f"byte {error.start}", "not UTF-8; save it as UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ServersFileError(path, place, f"not JSON ({error.msg}); comments and trailing commas are not") from error
    except RecursionError as error:
        raise ServersFileError(path, "file", "nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ServersFileError(
            path, "file", "a text in it has half a character, such as \\ud83d; take it out"
        ) from error
    return document, twice


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
        raise ServersFileError(path, present[0], "must be an object: a server's name, then its entry")
    if "" in entries:
        raise ServersFileError(path, present[0], "has a server without a name; give it one")
    return cast("dict[str, Any]", entries)
