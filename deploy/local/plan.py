"""Decides from the environment which programs `make run` starts, and with which settings."""

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from deploy.local import own_variables
from deploy.local.own_variables import Inherits

DATA = Path(".data")
MCP_CONFIG = Path("examples/mcp.json")
LOCAL = "127.0.0.1"
REQUEST_KEYS = DATA / "request.keys"
LONGEST_SOCKET_PATH = 100
"""Bytes of the path of a Unix socket: Linux accepts 107, macOS 103."""


@dataclass(frozen=True, slots=True)
class Program:
    """One process. It is ready when `ready_url` answers 200 or, with the scheme `redis` or `unix`, PONG to PING.

    All programs of a stage are ready before the next stage starts. `inherits` selects the variables of the environment
    that it gets beside `env`.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    ready_url: str
    stage: int
    inherits: Inherits = own_variables.system


@dataclass(frozen=True, slots=True)
class Plan:
    """The programs to start, and the facts to show to the user."""

    programs: tuple[Program, ...]
    host: str
    port: int
    url: str
    facts: Mapping[str, str]


class PlanError(ValueError):
    """A setting in the environment has no usable value. The message names the setting."""


def make_plan(environment: Mapping[str, str], *, free_port: Callable[[], int], valkey: Callable[[], Path]) -> Plan:
    """The plan for this environment; empty variables count as unset.

    Raises:
        PlanError: a setting that is needed here has no usable value.
    """
    given = {name: value for name, value in environment.items() if value}
    shared: dict[str, str] = {}
    facts: dict[str, str] = {}
    programs = [
        *_redis(given, shared, facts, valkey),
        *_model(given, shared, facts, free_port),
        *_tools(given, shared, facts, free_port),
    ]
    health_port = given.get("HEALTH_PORT") or str(free_port())
    host, port = given.get("HOST", LOCAL), _port(given)
    url = _page(host, port)
    # A user who presses Ctrl-C should not wait for 30 seconds, which is the default for clusters.
    worker = {"HEALTH_PORT": health_port, "DRAIN_SECONDS": given.get("DRAIN_SECONDS", "5")}
    engine = {
        "HOST": host,
        "PORT": str(port),
        "OUTBOX_PATH": given.get("OUTBOX_PATH", str(DATA / "dialog-engine.sqlite3")),
    }
    config = shared.get("MCP_CONFIG") or given.get("MCP_CONFIG")
    workers_own = own_variables.worker(Path(config) if config else None)
    ready_url = f"http://{LOCAL}:{health_port}/readyz"
    programs += [
        Program("plugins-mcp", _script("plugins-mcp"), shared | worker, ready_url, 1, workers_own),
        Program("dialog-engine", _script("dialog-engine"), shared | engine, f"{url}/readyz", 1, own_variables.engine),
    ]
    facts = {"Chat page": url, **facts, "Data": f"{DATA}, logs in {DATA / 'logs'}"}
    return Plan(tuple(programs), host, port, url, facts)


def _redis(
    given: Mapping[str, str],
    shared: dict[str, str],
    facts: dict[str, str],
    valkey: Callable[[], Path],
) -> list[Program]:
    if url := given.get("REDIS_URL"):
        facts["Redis"] = _without_password(url)
        return []
    socket = _socket()
    url = f"unix://{quote(str(socket))}"
    shared["REDIS_URL"] = url
    shared["REQUEST_KEYS_FILE"] = given.get("REQUEST_KEYS_FILE", str(REQUEST_KEYS))
    facts["Redis"] = f"embedded Valkey at {url} (REDIS_URL uses yours)"
    options = {
        # A socket that only this user can open, and no port.
        "--port": "0",
        "--unixsocket": str(socket),
        "--unixsocketperm": "700",
        "--dir": str((DATA / "valkey").resolve()),
        "--save": "",
        "--appendonly": "yes",
        "--appendfsync": "everysec",
    }
    argv = (str(valkey()), *(word for option in options.items() for word in option))
    return [Program("valkey", argv, {}, url, 0)]


def _socket() -> Path:
    """The embedded server's socket, in a folder that only this user can enter."""
    path = (DATA / "valkey" / "valkey.sock").resolve()
    if len(bytes(path)) <= LONGEST_SOCKET_PATH:
        return path
    return Path(tempfile.mkdtemp(prefix="callstream-")) / "valkey.sock"


def _model(
    given: Mapping[str, str], shared: dict[str, str], facts: dict[str, str], free_port: Callable[[], int]
) -> list[Program]:
    if "OPENAI_API_KEY" in given or "OPENAI_BASE_URL" in given:
        name, where = given.get("OPENAI_MODEL", "the default model"), given.get("OPENAI_BASE_URL", "OpenAI")
        facts["Model"] = f"{name} at {_without_password(where)}"
        return []
    if "ANTHROPIC_API_KEY" in given or "ANTHROPIC_BASE_URL" in given:
        name, where = given.get("ANTHROPIC_MODEL", "the default model"), given.get("ANTHROPIC_BASE_URL", "Anthropic")
        facts["Model"] = f"{name} at {_without_password(where)}"
        return []
    port = free_port()
    shared |= {
        "OPENAI_BASE_URL": f"http://{LOCAL}:{port}/v1",
        "OPENAI_MODEL": "demo-scripted",
        "MODEL_LABEL": "Scripted demo model",
        "MODEL_SCRIPTED": "true",
    }
    facts["Model"] = "a script, not an AI (OPENAI_API_KEY, OPENAI_BASE_URL or ANTHROPIC_API_KEY uses a real one)"
    argv = (sys.executable, "-m", "examples.demo_model", "--host", LOCAL, "--port", str(port))
    return [Program("demo-model", argv, {}, f"http://{LOCAL}:{port}/healthz", 0)]


def _tools(
    given: Mapping[str, str], shared: dict[str, str], facts: dict[str, str], free_port: Callable[[], int]
) -> list[Program]:
    if chosen := given.get("MCP_CONFIG") or given.get("MCP_SERVER_ENDPOINT"):
        facts["Tools"] = _without_password(chosen)
        return []
    port = free_port()
    shared |= {
        "MCP_CONFIG": str(MCP_CONFIG),
        "DEMO_MCP_URL": f"http://{LOCAL}:{port}/mcp",
        "PYTHON": sys.executable,
    }
    facts["Tools"] = f"{MCP_CONFIG} (MCP_CONFIG or MCP_SERVER_ENDPOINT uses yours)"
    argv = (sys.executable, "-m", "examples.demo_server", "--transport", "streamable-http")
    address = ("--host", LOCAL, "--port", str(port))
    return [Program("demo-mcp-server", argv + address, {}, f"http://{LOCAL}:{port}/healthz", 0)]


def _script(name: str) -> tuple[str, ...]:
    return (str(Path(sys.executable).with_name(name)),)


def _port(given: Mapping[str, str]) -> int:
    text = given.get("PORT", "8000")
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise PlanError(f"PORT must be a number from 1 to 65535, not {text!r}")
    return int(text)


def _page(host: str, port: int) -> str:
    """The URL under which a browser on this machine reaches a server that listens there."""
    reachable = {"0.0.0.0": LOCAL, "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _without_password(url: str) -> str:
    secret = urlsplit(url).password if "://" in url else None
    return url.replace(f":{secret}@", ":***@") if secret else url
