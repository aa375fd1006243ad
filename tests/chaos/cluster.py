"""The whole product under fire: real processes that do much work at once, and can be killed, stopped and looked at."""

import os
import signal
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from redis import Redis

from deploy.local.ports import free_port
from plugins_mcp.leases import LeaseTimes
from tests.chaos.notes import Noted, notes_in
from tests.chaos.tools import SERVER, mcp_config
from tests.integration.servers import accepts
from tests.support import stack
from tests.support.processes import ROOT, Process, answers
from tests.support.quick_worker import QUICK
from tests.support.servers import LocalServer, embedded_binary
from tests.support.stack import START_SECONDS, Stack
from tests.support.waiting import wait_until_blocking

ENGINE = {"MCP_REQUEST_TIMEOUT_MS": "120000", "LOG_LEVEL": "WARNING"}


@dataclass
class Cluster(Stack):
    """A stack with the scripted model and the MCP server of the effect log, and on PostgreSQL with several engines.

    `engines` is how many, of which the first one is the stack's own, and `program` what is run as each; none, if they
    are started otherwise. `source` is put in front of the installed services: a copy of them with something taken out.
    `redis_options` are further options of the server's command line, `redis_env` its environment.
    """

    config: dict[str, Any] | None = field(default_factory=lambda: mcp_config(SERVER))
    engine_env: Mapping[str, str] = field(default_factory=dict[str, str])
    engines: int = 1
    program: Sequence[str | Path] = stack.ENGINE
    source: str = ""
    redis_options: tuple[str, ...] = ()
    redis_env: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        path = {"PYTHONPATH": f"{self.source}{os.pathsep}{ROOT}"} if self.source else {}
        self.engine_env = {**ENGINE, **path, **self.engine_env}
        self.legacy_port = free_port()
        """Of the MCP server, in the era before."""
        self.worker_env = {**path, "LEGACY_MCP_URL": f"http://127.0.0.1:{self.legacy_port}/mcp", **self.worker_env}
        super().__post_init__()
        self.redis = LocalServer(embedded_binary(), self._sub("redis"), *self.redis_options, env=self.redis_env)
        self.others: dict[int, Process] = {}
        """The further engines, by port."""
        self.worker_logs: list[str] = []
        """What workers wrote that have ended."""

    @property
    def leases(self) -> LeaseTimes:
        return QUICK if self.quick else LeaseTimes()

    @property
    def running_engines(self) -> dict[int, Process]:
        return ({self.engine_port: self.engine} if self.engine else {}) | self.others

    @contextmanager
    def client(self) -> Generator[Any]:
        """A connection to Redis for the harness itself; replies are text."""
        with Redis.from_url(self.redis.url, decode_responses=True, socket_timeout=5) as client:
            yield client

    def start(self, *, workers: int = 1) -> None:
        """Start everything at once: a start takes seconds of computing."""
        self.start_store()
        self.redis.start()
        self.start_demo()
        self.start_model()
        ports = [self.start_worker(wait=False) for _ in range(workers)]
        if self.engines:
            self.start_engine()
            self.start_others(self.engines - 1)
        for port in ports:
            self.wait_worker(port)
        if ports:
            for port in self.running_engines:
                self.wait_for_tools_at(port)
        wait_until_blocking(lambda: accepts(self.model_port), START_SECONDS, what="the model to listen")

    def start_others(self, count: int, program: Sequence[str | Path] = ()) -> list[int]:
        ports = [free_port() for _ in range(count)]
        for port in ports:
            self.others[port] = self.run_engine(port, "engine", program)
        return ports

    def wait_for_tools_at(self, port: int, server: str = SERVER) -> None:
        def offered() -> bool:
            known = httpx2.get(f"http://127.0.0.1:{port}/v1/tools").json()["servers"]
            return any(each["tools"] for each in known if each["server"] == server)

        wait_until_blocking(offered, START_SECONDS, what=f"the tools of {server}")

    def run_engine(self, port: int, name: str, program: Sequence[str | Path] = ()) -> Process:
        return super().run_engine(port, name, program or self.program)

    def start_model(self) -> Process:
        return self._run([sys.executable, "-m", "tests.chaos.model", str(self.model_port), self.effect_log], None)

    def start_demo(self) -> Process:
        """The MCP server. It need not listen yet: workers wait for it."""
        ports = [str(self.demo_port), str(self.legacy_port)]
        return self._run([sys.executable, "-m", "tests.chaos.tool_server", *ports, self.effect_log], None)

    def noted(self) -> Noted:
        return Noted(notes_in(self.effect_log))

    def close(self) -> None:
        """End everything at once. How it ends in good order is not the harness's question."""
        for part in self.parts:
            part.kill()
        super().close()

    def wait_worker(self, port: int) -> None:
        self.workers[port].wait_ready(lambda: answers(f"http://127.0.0.1:{port}/readyz"), START_SECONDS)

    def kill_worker(self, port: int) -> None:
        """End a worker as `kill -9` does."""
        self.workers[port].kill()
        self.end_worker(port)

    def end_worker(self, port: int) -> None:
        """End a worker in good order."""
        worker = self.workers.pop(port)
        worker.stop(30)
        self.worker_logs.append(worker.output())
        self.parts.remove(worker)
        worker.close()

    def logs(self) -> str:
        return "\n".join([*self.worker_logs, *(worker.output() for worker in self.workers.values())])

    def restart_engine(self, number: signal.Signals) -> None:
        """End the first engine with a signal, and start it again on its store."""
        assert self.engine is not None
        self.engine.send(number)
        self.engine.stop(30)
        self.start_engine()
