"""Decides from the environment which programs `make run` starts, and with which settings."""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from deploy.local import own_variables
from deploy.local.own_variables import Inherits
from dialog_engine.llm.providers import Providers

DATA = Path(".data")
MCP_CONFIG = Path("examples/mcp.json")
LOCAL = "127.0.0.1"
WAYS_TO_SIGN_IN = ("API_KEYS", "API_KEYS_FILE", "OIDC_ISSUER")
REQUEST_KEYS = DATA / "request.keys"
LONGEST_SOCKET_PATH = 100
"""Bytes of the path of a Unix socket: Linux accepts 107, macOS 103."""
MOST_PROCESSES = 32
"""Of one kind. More than this on one machine is a mistake."""


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
    """The programs to start, and the facts to show to the user. With `signs_in` requests need a key or a token."""

    programs: tuple[Program, ...]
    host: str
    port: int
    url: str
    facts: Mapping[str, str]
    signs_in: bool = False


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
    host, port = given.get("HOST", LOCAL), _port(given)
    url = _page(host, port)
    workers, engines = _count(given, "WORKERS"), _count(given, "ENGINES")
    if engines > 1 and "DATABASE_URL" not in given:
        raise PlanError(f"ENGINES={engines} needs DATABASE_URL: several engines share a PostgreSQL")
    programs += _workers(given, shared, workers, free_port)
    others = [free_port() for _ in range(engines - 1)]
    programs += _engines(given, shared, host, (port, *others))
    more = {"Engines": ", ".join([url, *(_page(host, other) for other in others)])} if others else {}
    facts = {"Chat page": url, **more, **facts, "Data": f"{DATA}, logs in {DATA / 'logs'}"}
    return Plan(tuple(programs), host, port, url, facts, signs_in=any(name in given for name in WAYS_TO_SIGN_IN))


def _workers(
    given: Mapping[str, str], shared: Mapping[str, str], count: int, free_port: Callable[[], int]
) -> list[Program]:
    config = shared.get("MCP_CONFIG") or given.get("MCP_CONFIG")
    inherits = own_variables.worker(Path(config) if config else None)
    programs: list[Program] = []
    for number in range(1, count + 1):
        port = given.get("HEALTH_PORT", "") if number == 1 else ""
        port = port or str(free_port())
        # A user who presses Ctrl-C should not wait for 30 seconds, which is the default for clusters.
        env = {**shared, "HEALTH_PORT": port, "DRAIN_SECONDS": given.get("DRAIN_SECONDS", "5")}
        ready_url = f"http://{LOCAL}:{port}/readyz"
        programs.append(Program(_name("plugins-mcp", number), _script("plugins-mcp"), env, ready_url, 1, inherits))
    return programs


def _engines(given: Mapping[str, str], shared: Mapping[str, str], host: str, ports: Sequence[int]) -> list[Program]:
    programs: list[Program] = []
    for number, port in enumerate(ports, 1):
        env = {**shared, "HOST": host, "PORT": str(port)}
        env["OUTBOX_PATH"] = given.get("OUTBOX_PATH", str(DATA / "dialog-engine.sqlite3"))
        if number > 1:
            env["OPERATIONS_PORT"] = ""  # the first engine has it
        name, ready_url = _name("dialog-engine", number), f"{_page(host, port)}/readyz"
        programs.append(Program(name, _script("dialog-engine"), env, ready_url, 1, own_variables.engine))
    return programs


def _name(program: str, number: int) -> str:
    return program if number == 1 else f"{program}-{number}"


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
    # Nobody but this user can enter the folder of the socket and delete what was accepted.
    shared["ACCEPT_FIRST_LISTINGS"] = given.get("ACCEPT_FIRST_LISTINGS", "true")
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
    for kind in Providers.kinds().values():
        if values := [given[each.upper()] for each in kind.selected_by if each.upper() in given]:
            model = given.get(kind.model_setting.upper(), "the default model")
            where = next((value for value in values if "://" in value), kind.__name__)
            facts["Model"] = f"{model} at {_without_password(where)}"
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


def _count(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, "1")
    if not text.isdecimal() or not 0 < int(text) <= MOST_PROCESSES:
        raise PlanError(f"{name} must be a number from 1 to {MOST_PROCESSES}, not {text!r}")
    return int(text)


def _page(host: str, port: int) -> str:
    """The URL under which a browser on this machine reaches a server that listens there."""
    reachable = {"0.0.0.0": LOCAL, "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _without_password(url: str) -> str:
    secret = urlsplit(url).password if "://" in url else None
    return url.replace(f":{secret}@", ":***@") if secret else url
