"""Decides from the environment which programs `make run` starts, and with which settings."""

import sys
import tempfile
from collections.abc import Callable, Mapping
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
    """One process. It is ready when `ready_url` answers 200 or, with the scheme `unix`, PONG to PING.

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
    """What engine and worker get beside their own variables."""
    facts: dict[str, str] = {}
    host, port = given.get("HOST", LOCAL), _number(given, "PORT", 8000, 65535)
    workers, engines = _number(given, "WORKERS", 1, MOST_PROCESSES), _number(given, "ENGINES", 1, MOST_PROCESSES)
    if engines > 1 and "DATABASE_URL" not in given:
        raise PlanError(f"ENGINES={engines} needs DATABASE_URL: several engines share a PostgreSQL")
    programs = [
        *_redis(given, shared, facts, valkey),
        *_model(given, shared, facts, free_port),
        *_tools(given, shared, facts, free_port),
    ]
    inherits = own_variables.worker(shared.get("MCP_CONFIG") or given.get("MCP_CONFIG"))
    for number in range(workers):
        health = str((number == 0 and given.get("HEALTH_PORT")) or free_port())
        # A user who presses Ctrl-C should not wait for 30 seconds, which is the default for clusters.
        env = {**shared, "HEALTH_PORT": health, "DRAIN_SECONDS": given.get("DRAIN_SECONDS", "5")}
        programs.append(_service("plugins-mcp", number, env, f"http://{LOCAL}:{health}", inherits))
    pages: list[str] = []
    for number in range(engines):
        own = port if number == 0 else free_port()
        pages.append(_page(host, own))
        env = {**shared, "HOST": host, "PORT": str(own)}
        env["OUTBOX_PATH"] = given.get("OUTBOX_PATH", str(DATA / "dialog-engine.sqlite3"))
        if number:
            env["OPERATIONS_PORT"] = ""  # the first engine has it
        programs.append(_service("dialog-engine", number, env, pages[-1], own_variables.engine))
    more = {"Engines": ", ".join(pages)} if engines > 1 else {}
    facts = {"Chat page": pages[0], **more, **facts, "Data": f"{DATA}, logs in {DATA / 'logs'}"}
    return Plan(tuple(programs), host, port, pages[0], facts, any(name in given for name in WAYS_TO_SIGN_IN))


def _service(program: str, number: int, env: Mapping[str, str], url: str, inherits: Inherits) -> Program:
    name, script = f"{program}-{number + 1}" if number else program, str(Path(sys.executable).with_name(program))
    return Program(name, (script,), env, f"{url}/readyz", 1, inherits)


def _redis(
    given: Mapping[str, str], shared: dict[str, str], facts: dict[str, str], valkey: Callable[[], Path]
) -> list[Program]:
    if url := given.get("REDIS_URL"):
        facts["Redis"] = _without_password(url)
        return []
    folder = (DATA / "valkey").resolve()
    socket = folder / "valkey.sock"
    if len(bytes(socket)) > LONGEST_SOCKET_PATH:
        socket = Path(tempfile.mkdtemp(prefix="callstream-")) / "valkey.sock"  # which only this user can enter, too
    url = f"unix://{quote(str(socket))}"
    shared["REDIS_URL"] = url
    shared["REQUEST_KEYS_FILE"] = given.get("REQUEST_KEYS_FILE", str(REQUEST_KEYS))
    # Nobody but this user can enter the folder of the socket and delete what was accepted.
    shared["ACCEPT_FIRST_LISTINGS"] = given.get("ACCEPT_FIRST_LISTINGS", "true")
    facts["Redis"] = f"embedded Valkey at {url} (REDIS_URL uses yours)"
    # A socket that only this user can open, and no port.
    words = ("--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700", "--dir", str(folder))
    kept = ("--save", "", "--appendonly", "yes", "--appendfsync", "everysec")
    return [Program("valkey", (str(valkey()), *words, *kept), {}, url, 0)]


def _model(
    given: Mapping[str, str], shared: dict[str, str], facts: dict[str, str], free_port: Callable[[], int]
) -> list[Program]:
    for kind in Providers.kinds().values():
        if values := [given[each.upper()] for each in kind.selected_by if each.upper() in given]:
            model = given.get(kind.model_setting.upper(), "the default model")
            where = next((value for value in values if "://" in value), kind.__name__)
            facts["Model"] = f"{model} at {_without_password(where)}"
            return []
    program = _demo("demo-model", free_port(), "examples.demo_model")
    shared |= {
        "OPENAI_BASE_URL": program.ready_url.replace("/healthz", "/v1"),
        "OPENAI_MODEL": "demo-scripted",
        "MODEL_LABEL": "Scripted demo model",
        "MODEL_SCRIPTED": "true",
    }
    facts["Model"] = "a script, not an AI (OPENAI_API_KEY, OPENAI_BASE_URL or ANTHROPIC_API_KEY uses a real one)"
    return [program]


def _tools(
    given: Mapping[str, str], shared: dict[str, str], facts: dict[str, str], free_port: Callable[[], int]
) -> list[Program]:
    if chosen := given.get("MCP_CONFIG") or given.get("MCP_SERVER_ENDPOINT"):
        facts["Tools"] = _without_password(chosen)
        return []
    program = _demo("demo-mcp-server", free_port(), "examples.demo_server", "--transport", "streamable-http")
    shared |= {
        "MCP_CONFIG": str(MCP_CONFIG),
        "DEMO_MCP_URL": program.ready_url.replace("/healthz", "/mcp"),
        "PYTHON": sys.executable,
    }
    facts["Tools"] = f"{MCP_CONFIG} (MCP_CONFIG or MCP_SERVER_ENDPOINT uses yours)"
    return [program]


def _demo(name: str, port: int, module: str, *words: str) -> Program:
    argv = (sys.executable, "-m", module, *words, "--host", LOCAL, "--port", str(port))
    return Program(name, argv, {}, f"http://{LOCAL}:{port}/healthz", 0)


def _number(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = given.get(name, str(default))
    if not text.isdecimal() or not 0 < int(text) <= most:
        raise PlanError(f"{name} must be a number from 1 to {most}, not {text!r}")
    return int(text)


def _page(host: str, port: int) -> str:
    """The URL under which a browser on this machine reaches a server that listens there."""
    reachable = {"0.0.0.0": LOCAL, "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _without_password(url: str) -> str:
    secret = urlsplit(url).password if "://" in url else None
    return url.replace(f":{secret}@", ":***@") if secret else url
