"""The whole product under fire: real processes that do much work at once, and can be killed, stopped and looked at."""

import os
import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis

from tests.chaos.model_server import SERVER
from tests.integration.servers import accepts
from tests.support.processes import ROOT, Process, answers
from tests.support.stack import START_SECONDS, Stack

MCP_CONFIG = {
    "mcpServers": {
        SERVER: {"type": "http", "url": "${DEMO_MCP_URL}", "callstream": {"trust": True, "concurrency": 64}},
    }
}
ENGINE = {"MCP_REQUEST_TIMEOUT_MS": "120000", "LOG_LEVEL": "WARNING"}


@dataclass
class Rig(Stack):
    """A stack with the scripted model and the MCP server of the effect log.

    `source` is put in front of the installed services: a copy of them with something taken out.
    """

    config: dict[str, Any] | None = field(default_factory=lambda: MCP_CONFIG)
    engine_env: Mapping[str, str] = field(default_factory=dict[str, str])
    source: str = ""

    def __post_init__(self) -> None:
        path = {"PYTHONPATH": f"{self.source}{os.pathsep}{ROOT}"} if self.source else {}
        self.engine_env = {**ENGINE, **path, **self.engine_env}
        self.worker_env = {**path, **self.worker_env}
        super().__post_init__()
        self.worker_logs: list[str] = []
        """What workers wrote that have ended."""

    @property
    def database(self) -> Path:
        """The engine's file."""
        return self.folder / "engine.sqlite3"

    @contextmanager
    def client(self) -> Generator[Any]:
        """A connection to Redis for the harness itself; replies are text."""
        with Redis.from_url(self.redis.url, decode_responses=True, socket_timeout=5) as client:
            yield client

    def start_model(self) -> None:
        self._run_listening("tests.chaos.model_server", self.model_port)

    def start_demo(self) -> Process:
        return self._run_listening("tests.chaos.effect_server", self.demo_port, str(self.effect_log))

    def wait_worker(self, port: int) -> None:
        """Wait until a worker that was started is ready."""
        self.workers[port].wait_ready(lambda: answers(f"http://127.0.0.1:{port}/readyz"), START_SECONDS)

    def kill_worker(self, port: int) -> int:
        """End a worker as `kill -9` does; its process id."""
        worker = self.workers.pop(port)
        worker.kill()
        self._bury(worker)
        return worker.pid

    def end_worker(self, port: int) -> int:
        """End a worker in good order; its process id."""
        worker = self.workers.pop(port)
        worker.stop(30)
        self._bury(worker)
        return worker.pid

    def logs(self) -> str:
        """What all workers have written."""
        return "\n".join([*self.worker_logs, *(worker.output() for worker in self.workers.values())])

    def restart_engine(self, number: signal.Signals) -> None:
        """End the engine with a signal, and start it again on its file."""
        assert self.engine is not None
        self.engine.send(number)
        self.engine.stop(30)
        self.start_engine()

    def _bury(self, worker: Process) -> None:
        self.worker_logs.append(worker.output())
        self.parts.remove(worker)
        worker.close()

    def _run_listening(self, module: str, port: int, *arguments: str) -> Process:
        process = self._run([sys.executable, "-m", module, str(port), *arguments], None)
        process.wait_ready(lambda: accepts(port), START_SECONDS)
        return process


@contextmanager
def running_rig(folder: Path, *, workers: int, **options: Any) -> Generator[Rig]:
    """A rig that runs for as long as the block."""
    rig = Rig(folder, **options)
    try:
        rig.start(workers=workers)
        yield rig
    finally:
        rig.close()
