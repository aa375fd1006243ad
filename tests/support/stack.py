"""The whole product as real processes on free ports: Redis, demo model, demo MCP server, workers, an engine.

Its store is an SQLite file, or a PostgreSQL server of its own that any number of engines share. Every part can be
killed and started again in its place. What the parts wrote is printed at the end, which pytest shows when the test
failed. Nothing here needs an event loop.
"""

import json
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from deploy.local.ports import free_port
from tests.support.forked import as_forked, with_forked_servers
from tests.support.postgres import PostgresServer
from tests.support.processes import ROOT, Process, answers
from tests.support.servers import LocalServer, embedded_binary
from tests.support.store import Kind, Store
from tests.support.waiting import wait_until_blocking

BIN = Path(sys.executable).parent
ENGINE = (BIN / "dialog-engine",)
"""The engine as users run it."""
DATABASE = "callstream"
"""The database of all engines of a stack on PostgreSQL."""
START_SECONDS = 60.0
"""Machines that run everything at once are slow."""
QUICK_WORKER = [sys.executable, "-m", "tests.support.quick_worker"]
Json = dict[str, Any]


@dataclass(frozen=True)
class Event:
    id: str
    name: str
    data: Json


@dataclass(frozen=True)
class Said:
    """A turn as its events tell it."""

    events: tuple[Event, ...]

    @property
    def text(self) -> str:
        """All text, of every message of the turn, after the last reset."""
        text = ""
        for event in self.events:
            text = "" if event.name == "reset" else text + event.data.get("delta", "") * (event.name == "text")
        return text

    @property
    def reason(self) -> str:
        return str(self.events[-1].data["reason"]) if self.events[-1].name == "done" else "not done"

    def steps(self, tool: str) -> list[Json]:
        """The steps of the calls of one tool (its full name)."""
        return [each.data for each in self.controls("tool") if each.data["toolName"] == tool]

    def statuses(self, tool: str) -> list[list[str]]:
        """For each call of the tool, its statuses in order; repeated progress counts once."""
        by_call: dict[str, list[str]] = {}
        for step in self.steps(tool):
            statuses = by_call.setdefault(step["correlationId"], [])
            if not statuses or statuses[-1] != step["status"]:
                statuses.append(step["status"])
        return list(by_call.values())

    def quick_statuses(self, tool: str) -> list[list[str]]:
        """The same without `running`, which a call that ends within 25 ms does not have."""
        return [[each for each in statuses if each != "running"] for statuses in self.statuses(tool)]

    def controls(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.name == "control" and event.data["type"] == kind]


def events_of(lines: Iterator[str]) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            yield Event(fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"]))
            fields = {}


@dataclass
class Stack:
    """The parts. `config` is the content of `mcp.json`; None takes that of the examples.

    `model_url` puts another OpenAI-compatible server in the demo model's place.
    """

    folder: Path
    config: Json | None = None
    model_url: str | None = None
    engine_env: Mapping[str, str] = field(default_factory=dict[str, str])
    worker_env: Mapping[str, str] = field(default_factory=dict[str, str])
    quick: bool = False
    """Workers with short leases."""
    forked: bool = False
    """Programs are forked, which takes a tenth of the time: see `tests.support.forked`."""
    token_delay_ms: float = 1
    database: Kind = "sqlite"
    """With "postgres" all engines share one server, which `start_store` starts."""

    def __post_init__(self) -> None:
        self.parts: list[Process] = []
        self._stores: dict[str, Store] = {}
        self._folders = ExitStack()
        self.postgres: PostgresServer | None = None
        if self.database == "postgres":
            # Not in the stack's folder, which may be closed to the account that the server runs as.
            folder = self._folders.enter_context(tempfile.TemporaryDirectory(prefix="callstream-postgres-"))
            self.postgres = PostgresServer(Path(folder))
        self.redis = LocalServer(embedded_binary(), self._sub("redis"))
        self.engine_port, self.model_port, self.demo_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.engine_port}"
        self.demo_url = f"http://127.0.0.1:{self.demo_port}/mcp"
        self.effect_log = self.folder / "effects.log"
        self.config_path = self.folder / "mcp.json"
        config = self.config or json.loads((ROOT / "examples" / "mcp.json").read_text())
        self.config_path.write_text(json.dumps(with_forked_servers(config) if self.forked else config))
        self.http = httpx2.Client(base_url=self.url, timeout=60, verify=False)
        self.engine: Process | None = None
        self.workers: dict[int, Process] = {}

    @property
    def store(self) -> Store:
        """Where the stack's own engine keeps what it must not forget; on PostgreSQL that of all engines."""
        return self.store_of("engine")

    def store_of(self, name: str) -> Store:
        """The store of the engine of that name: an SQLite file of its own, or the database that all share."""
        where = self.folder / f"{name}.sqlite3" if self.postgres is None else self.postgres.url_of(DATABASE)
        return self._stores.setdefault(str(where), Store(where))

    def start_store(self) -> None:
        """Start PostgreSQL, if the engines share one, and make their database."""
        if self.postgres is not None:
            self.postgres.start()
            self.postgres.create_database(DATABASE)

    def start(self, *, workers: int = 1) -> None:
        """Start everything, and wait until the model can be offered the tools."""
        self.start_store()
        self.redis.start()
        self.start_demo()
        if self.model_url is None:
            self.start_model()
        ports = [self.start_worker(wait=False) for _ in range(workers)]
        self.start_engine()
        for port in ports:
            self.workers[port].wait_ready(lambda port=port: answers(f"http://127.0.0.1:{port}/readyz"), START_SECONDS)
        self.wait_for_tools()

    def start_all_but_engines(self) -> Process:
        """Start what engines need, and one worker, which is returned."""
        self.start_store()
        self.redis.start()
        self.start_demo()
        self.start_model()
        return self.workers[self.start_worker()]

    def close(self) -> None:
        self.http.close()
        for part in self.parts:  # all at once: each takes its time
            part.send(signal.SIGCONT)
            part.send(signal.SIGTERM)
        for part in reversed(self.parts):
            part.close()
        self.redis.stop()
        for store in self._stores.values():
            store.close()
        if self.postgres is not None:
            self.postgres.stop()
        self._folders.close()

    def start_model(self) -> Process:
        options = ["--port", str(self.model_port), "--token-delay-ms", str(self.token_delay_ms)]
        argv = [sys.executable, "-m", "examples.demo_model", *options]
        return self._run(argv, f"http://127.0.0.1:{self.model_port}/healthz")

    def start_demo(self) -> Process:
        argv = [sys.executable, "-m", "examples.demo_server", "--port", str(self.demo_port)]
        return self._run(argv, f"http://127.0.0.1:{self.demo_port}/healthz", {"DEMO_EFFECT_LOG": str(self.effect_log)})

    def start_worker(self, *, wait: bool = True, program: Sequence[str | Path] = (), port: int | None = None) -> int:
        """A worker, or this program as one; the port of its health endpoints, a free one if none is given."""
        port = port or free_port()
        argv = program or (QUICK_WORKER if self.quick else [str(BIN / "plugins-mcp")])
        env = {
            "REDIS_URL": self.redis.url,
            "MCP_CONFIG": str(self.config_path),
            "HEALTH_PORT": str(port),
            "DEMO_MCP_URL": self.demo_url,
            "PYTHON": sys.executable,
            **self.worker_env,
        }
        self.workers[port] = self._run(argv, f"http://127.0.0.1:{port}/readyz" if wait else None, env)
        return port

    def start_engine(self) -> Process:
        """The engine, on the same store as the last one."""
        self.engine = self.run_engine(self.engine_port, "engine")
        return self.engine

    def run_engine(self, port: int, name: str, program: Sequence[str | Path] = ENGINE) -> Process:
        """An engine on that port, with the store of that name."""
        model = self.model_url or f"http://127.0.0.1:{self.model_port}/v1"
        env = {
            "REDIS_URL": self.redis.url,
            "PORT": str(port),
            **self.store_of(name).env,
            "OPENAI_BASE_URL": model,
            "OPENAI_MODEL": "demo-scripted",
            "MODEL_SCRIPTED": "true",
            "MODEL_LABEL": "Scripted demo model",
            "SHUTDOWN_GRACE_SECONDS": "1",
            **self.engine_env,
        }
        return self._run(program, f"http://127.0.0.1:{port}/healthz", env)

    def wait_for_tools(self, *names: str) -> None:
        """Wait until every usable server of the configuration has tools, or those named do."""

        def offered() -> bool:
            servers = self.tools()
            wanted = names or servers
            return bool(servers) and all(name in servers and servers[name]["tools"] for name in wanted)

        wait_until_blocking(offered, START_SECONDS, what="the tools to be offered")

    def tools(self) -> dict[str, Json]:
        return {each["server"]: each for each in self.http.get("/v1/tools").json()["servers"]}

    def ask(self, message: str, session_id: str | None = None) -> Said:
        with self.asking(message, session_id) as events:
            return Said(tuple(events))

    @contextmanager
    def asking(
        self, message: str, session_id: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Generator[Iterator[Event]]:
        body = {"message": message} | ({"sessionId": session_id} if session_id else {})
        with self.http.stream("POST", "/v1/chat", json=body, headers=headers) as response:
            assert response.status_code == 200, response.read()
            yield events_of(response.iter_lines())

    def follow(self, turn_id: str, after: str | None = None) -> Said:
        """A turn's events after the one with that id, up to its end."""
        headers = {"Last-Event-ID": after} if after else {}
        with self.http.stream("GET", f"/v1/turns/{turn_id}/events", headers=headers) as response:
            assert response.status_code == 200, response.read()
            return Said(tuple(events_of(response.iter_lines())))

    def effects(self, token: str) -> list[Json]:
        """What the demo server has really done under that token."""
        if not self.effect_log.exists():
            return []
        effects: list[Json] = [json.loads(line) for line in self.effect_log.read_text().splitlines()]
        return [effect for effect in effects if effect.get("token") == token]

    def wait_for_effect(self, token: str) -> None:
        wait_until_blocking(lambda: self.effects(token), 30, what=f"an effect {token!r}")

    def bury(self, process: Process) -> None:
        """Print what a process wrote that has ended, and forget it."""
        self.parts.remove(process)
        process.close()

    def _run(self, argv: Sequence[str | Path], ready_url: str | None, env: Mapping[str, str] | None = None) -> Process:
        is_known = list(argv[1:2]) == ["-m"] or Path(argv[0]).name in ("dialog-engine", "plugins-mcp")
        program = as_forked(*map(str, argv)) if self.forked and is_known else argv
        process = Process(program, env={"PYTHONPATH": str(ROOT), **(env or {})}, cwd=self._sub("cwd"))
        self.parts.append(process)
        if ready_url:
            process.wait_ready(lambda: answers(ready_url), START_SECONDS)
        return process

    def _sub(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder


@contextmanager
def running_stack(*, workers: int = 1, start: bool = True, **options: Any) -> Generator[Stack]:
    """A stack in a folder of its own, for as long as the block."""
    with tempfile.TemporaryDirectory(prefix="callstream-") as folder:
        stack = Stack(Path(folder), **options)
        try:
            if start:
                stack.start(workers=workers)
            yield stack
        finally:
            stack.close()
