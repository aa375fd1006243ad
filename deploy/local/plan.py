"""Decides from the environment which programs `make run` starts, and with which settings."""

import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from callstream_runtime.settings_sources import fields_of
from dialog_engine.llm.providers import Providers
from dialog_engine.settings import Settings as EngineSettings
from plugins_mcp.config import Settings as WorkerSettings

DATA = Path(".data")
LOCAL = "127.0.0.1"
SYSTEM = (
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|TMPDIR|TZ|LANG\w*|(?:LC|DYLD|XDG)_\w+|PYTHON\w*|LOCAL_PORTS|LD_LIBRARY_PATH"
)
"""The variables that every program inherits. None holds a secret."""
_NETWORK = r"(?i:https?|all|no)_proxy|SSL_CERT_FILE|SSL_CERT_DIR|SSLKEYLOGFILE|REQUESTS_CA_BUNDLE|OTEL_\w+"
_PROVIDERS = r"(?:AWS|AZURE|GOOGLE|CLOUDSDK|OPENAI|ANTHROPIC|PG)\w+"
"""What the SDKs of the model providers and libpq read themselves."""
QUESTION = "What time is it in Tokyo and in Paris?"


class RunError(Exception):
    """The programs cannot be started, or one of them ended. The message is for the user."""


@dataclass(frozen=True, slots=True)
class Program:
    """One process. It gets `env` and the variables of the environment whose names `inherits`, an expression, matches.

    It is ready when `ready_url`, if it has one, answers 200. All of a stage are ready before the next stage starts.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    ready_url: str = ""
    stage: int = 0
    inherits: str = SYSTEM


def make_plan(
    environment: Mapping[str, str], *, free_port: Callable[[], int], valkey: Callable[[], Path]
) -> tuple[list[Program], str]:
    """The programs for this environment, an engine last, and the text that says what runs and what to try. Variables
    that are empty count as unset. The services check their own settings. Raises RunError, which names the setting, when
    it asks for too many processes."""
    given = {name: value for name, value in environment.items() if value}
    programs, shared = list[Program](), dict[str, str]()  # `shared`: what engine and worker get beside their own
    facts = dict.fromkeys(("Chat page", "Redis", "Model", "Tools"), "yours")
    if "REDIS_URL" not in given:
        programs.append(redis := _valkey(valkey()))
        facts["Redis"] = f"embedded Valkey at {redis.env['REDIS_URL']} (REDIS_URL uses yours)"
        # Nobody but this user can enter the folder of the socket and delete what was accepted.
        defaults = {"REQUEST_KEYS_FILE": str(DATA / "request.keys"), "ACCEPT_FIRST_LISTINGS": "true"}
        shared |= {**redis.env, **{name: given.get(name, value) for name, value in defaults.items()}}
    if not any(name.upper() in given for kind in Providers.kinds().values() for name in kind.selected_by):
        programs.append(demo := _demo("demo-model", free_port(), "examples.demo_model"))
        facts["Model"] = "a script, not an AI (OPENAI_API_KEY, OPENAI_BASE_URL or ANTHROPIC_API_KEY uses a real one)"
        shared |= {"OPENAI_BASE_URL": demo.ready_url.replace("/healthz", "/v1"), "OPENAI_MODEL": "demo-scripted"}
        shared |= {"MODEL_LABEL": "Scripted demo model", "MODEL_SCRIPTED": "true"}
    if not given.keys() & {"MCP_CONFIG", "MCP_SERVER_ENDPOINT"}:
        words = ("--transport", "streamable-http")
        programs.append(demo := _demo("demo-mcp-server", free_port(), "examples.demo_server", *words))
        shared |= {"MCP_CONFIG": "examples/mcp.json", "PYTHON": sys.executable}
        shared["DEMO_MCP_URL"] = demo.ready_url.replace("/healthz", "/mcp")
        facts["Tools"] = "examples/mcp.json (MCP_CONFIG or MCP_SERVER_ENDPOINT uses yours)"
    references = list[str]()
    with suppress(OSError):  # the worker reports what is wrong with the file
        references += re.findall(r"\$\{(?:env:)?(\w+)", Path(given.get("MCP_CONFIG", "")).read_text(errors="replace"))
    inherits = "|".join((SYSTEM, _NETWORK, *map(str.upper, fields_of(WorkerSettings)), *references))
    for number in range(_count(given, "WORKERS")):
        health = str((number == 0 and given.get("HEALTH_PORT")) or free_port())
        # A user who presses Ctrl-C should not wait for 30 seconds, which is the default for clusters.
        env = {**shared, "HEALTH_PORT": health, "DRAIN_SECONDS": given.get("DRAIN_SECONDS", "5")}
        programs.append(_service("plugins-mcp", number, env, f"http://{LOCAL}:{health}", inherits))
    inherits = "|".join((SYSTEM, _NETWORK, _PROVIDERS, *map(str.upper, fields_of(EngineSettings))))
    host, pages = given.get("HOST", LOCAL), list[str]()
    reachable = {"0.0.0.0": LOCAL, "::": "::1"}.get(host, host)  # from this machine
    for number in range(_count(given, "ENGINES")):
        port = given.get("PORT", "8000") if number == 0 else str(free_port())
        pages.append(f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}")
        outbox = given.get("OUTBOX_PATH", str(DATA / "dialog-engine.sqlite3"))
        env = {**shared, "HOST": host, "PORT": port, "OUTBOX_PATH": outbox}
        env |= {"OPERATIONS_PORT": ""} if number else {}  # the first engine has it
        programs.append(_service("dialog-engine", number, env, pages[-1], inherits))
    facts |= {"Chat page": ", ".join(pages), "Data": f"{DATA}, logs in {DATA / 'logs'}"}
    key = ' -H "authorization: Bearer $KEY"' if given.keys() & {"API_KEYS", "API_KEYS_FILE", "OIDC_ISSUER"} else ""
    body = f"-H 'content-type: application/json' -d '{{\"message\":\"{QUESTION}\"}}'"
    shown = "\n".join(f"  {name:<10} {fact}" for name, fact in facts.items())
    tries = f"  open {pages[0]} and ask: {QUESTION}\n  curl -N {pages[0]}/v1/chat{key} {body}"
    return programs, f"\nCallstream is running.\n\n{shown}\n\nTry\n{tries}\n"


def _valkey(binary: Path) -> Program:
    """On a socket that only this user can open, and no port. Its environment has the address."""
    folder = (DATA / "valkey").resolve()
    socket = folder / "valkey.sock"
    if len(bytes(socket)) > 100:  # Linux accepts 107 bytes, macOS 103
        socket = Path(tempfile.mkdtemp(prefix="callstream-")) / "valkey.sock"  # which only this user can enter, too
    place = ("--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700", "--dir", str(folder))
    kept = ("--save", "", "--appendonly", "yes", "--appendfsync", "everysec")
    return Program("valkey", (str(binary), *place, *kept), {"REDIS_URL": f"unix://{quote(str(socket))}"})


def _demo(name: str, port: int, module: str, *words: str) -> Program:
    argv = (sys.executable, "-m", module, *words, "--host", LOCAL, "--port", str(port))
    return Program(name, argv, {}, f"http://{LOCAL}:{port}/healthz")


def _service(program: str, number: int, env: Mapping[str, str], url: str, inherits: str) -> Program:
    name, script = f"{program}-{number + 1}" if number else program, str(Path(sys.executable).with_name(program))
    return Program(name, (script,), env, f"{url}/readyz", 1, inherits)


def _count(given: Mapping[str, str], name: str) -> int:
    if not re.fullmatch("[1-9]|[12][0-9]|3[0-2]", text := given.get(name, "1")):  # more on one machine is a mistake
        raise RunError(f"{name} must be a number from 1 to 32, not {text!r}")
    return int(text)
