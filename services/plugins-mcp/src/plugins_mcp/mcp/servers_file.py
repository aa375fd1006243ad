"""The `mcp.json` that people already have for other clients, with our options under `callstream`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
    raise NotImplementedError


def single_server(endpoint_url: str, api_key: str | None = None) -> ServerSpec:
    """The server `default` at an endpoint, reached with a bearer token when there is a key."""
    raise NotImplementedError
