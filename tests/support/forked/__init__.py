"""Python programs as child processes that start in a tenth of a second instead of one to three.

Nearly all of that time is the import of libraries. So a process for each kind of program imports them (`host.py`), once
per test run, and forks the programs. Whoever asked for one can kill it, and it is killed when they have ended. The
processes of pytest-xdist share the hosts of the process that started them.
"""

import json
import os
import select
import socket
import sys
from atexit import register
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryDirectory
from typing import IO, Any

_FOLDER = Path(__file__).parent
_ROOT = _FOLDER.parents[2]
SERVERS, SERVICES, TESTS = "FORKED_SERVERS", "FORKED_SERVICES", "FORKED_TESTS"
"""The variables with the hosts' sockets, for MCP servers, for our own services, and for processes of pytest-xdist."""
_SERVICES = ("dialog_engine.wiring.engine", "openai", "plugins_mcp.wiring", "examples.demo_server.server")
_LIBRARIES = ("anthropic", "playwright.async_api", "schemathesis")
_IMPORTED = {
    SERVERS: ("examples.demo_server.server", "rich.logging", "tests.integration.servers"),
    SERVICES: _SERVICES,
    TESTS: (
        *_SERVICES,
        "anthropic",
        "dialog_engine.main",
        "dialog_engine.operators",
        "playwright.async_api",
        "schemathesis",
    ),
}


def forked(module: str, *arguments: str, host: str = SERVERS) -> list[str]:
    """The command that runs a module of an MCP server as `python -m` does. Of all signals only SIGKILL reaches it.

    The command is a small process of its own (`child.py`), which hands its standard streams, folder and environment to
    the server and ends with its exit code.
    """
    return [sys.executable, "-I", "-S", str(_FOLDER / "child.py"), _host(host), module, *arguments]


def forked_python() -> list[str]:
    """The command that takes `-c CODE` as Python does, but has imported what the tests import."""
    return forked(f"{__name__}:run_code", host=TESTS)


def run_code() -> None:
    """The program of `forked_python`."""
    exec(sys.argv[-1], {"__name__": "__main__"})  # noqa: S102 - pytest-xdist says what


def forked_server(module: str, *arguments: str, **fields: Any) -> dict[str, Any]:
    """The same as a server of `mcp.json`, with more of its fields."""
    command, *options = forked(module, *arguments)
    return {"command": command, "args": options, **fields}


def with_forked_servers(config: dict[str, Any]) -> dict[str, Any]:
    """The content of an `mcp.json` in which the servers that are a `python -m` are forked."""
    servers = {
        name: entry | forked_server(*entry["args"][1:]) if entry.get("args", [])[:1] == ["-m"] else entry
        for name, entry in config["mcpServers"].items()
    }
    return config | {"mcpServers": servers}


@dataclass(frozen=True)
class Forked:
    """A program of our own, which `Process` runs forked. It cannot be frozen."""

    module: str
    """It is run as `python -m` does; or `module:function`, as a console script is."""
    arguments: tuple[str, ...] = ()


def as_forked(program: str, *arguments: str) -> Forked:
    """The same program, forked: a `python -m`, or the console script of a service."""
    if arguments[:1] == ("-m",):
        return Forked(arguments[1], arguments[2:])
    return Forked(f"{Path(program).name.replace('-', '_')}.main:main", arguments)


class ForkedChild:
    """A running one, as much of `Popen` as `Process` needs."""

    def __init__(self, program: Forked, *, log: IO[bytes], cwd: Path, env: Mapping[str, str]) -> None:
        self.returncode: int | None = None
        self._program = program
        self._host = socket.socket(socket.AF_UNIX)
        self._host.connect(_host(SERVICES))
        about = {"argv": [program.module, *program.arguments], "env": dict(env), "folder": str(cwd)}
        with Path(os.devnull).open("rb") as nothing:
            streams = [nothing.fileno(), log.fileno(), log.fileno()]
            socket.send_fds(self._host, [json.dumps(about).encode() + b"\n"], streams)
        self._answers = self._host.makefile("r")
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._host], [], [], 0)[0]:
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._host.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises TimeoutExpired."""
        if self.returncode is None and not select.select([self._host], [], [], timeout)[0]:
            raise TimeoutExpired(self._program.module, timeout or 0)
        return self.poll() or 0


def start_hosts() -> None:
    """Start the hosts of this process and of those that it starts. They import nothing before they are used."""
    for name in _IMPORTED:
        _start(name)


@cache
def _host(name: str) -> str:
    """The path of the socket of a host, which is started if none is there. It has imported everything."""
    path = os.environ.get(name) or _start(name)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # for this connection, too, it forks: it asks for no program, and is closed
    return path


def _start(name: str) -> str:
    folder = TemporaryDirectory(prefix="callstream-forked-")
    path = str(Path(folder.name) / "socket")
    command = [sys.executable, "-I", str(_FOLDER / "host.py"), str(_ROOT), path, *_IMPORTED[name]]
    host = Popen(command, stdin=PIPE, stdout=PIPE)
    assert host.stdin is not None
    assert host.stdout is not None
    assert host.stdout.readline() == b"ready\n"
    for end in (folder.cleanup, host.wait, host.stdin.close, host.stdout.close):
        register(end)
    os.environ[name] = path
    return path
