"""The part of the product that streams: Redis, a model that only talks, an engine, and an nginx in front of it."""

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.local.ports import free_port
from tests.chaos.report import UnableHereError
from tests.integration.servers import accepts
from tests.support import nginx
from tests.support.nginx import running_nginx
from tests.support.processes import Process
from tests.support.stack import ENGINE, START_SECONDS, Stack
from tests.support.waiting import wait_until_blocking

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class StreamingStack(Stack):
    """A stack without tools. `send_timeout`: after how many seconds a client that does not read is dropped."""

    send_timeout: float | None = None

    def start_all(self) -> None:
        """Start everything."""
        self.engine_env = {"ENABLE_MCP": "false", "LOG_LEVEL": "WARNING", **self.engine_env}
        self.start_store()
        self.redis.start()
        self._run([sys.executable, "-m", "tests.chaos.model", str(self.model_port), self.folder / "notes"], None)
        self.start_engine()
        wait_until_blocking(lambda: accepts(self.model_port), START_SECONDS, what="the model to listen")

    def run_engine(self, port: int, name: str, program: Sequence[str | Path] = ENGINE) -> Process:
        if self.send_timeout is not None:
            program = [sys.executable, "-m", "tests.chaos.engine", "--send-timeout", str(self.send_timeout)]
        return super().run_engine(port, name, program)

    def engine_seconds(self) -> float:
        """How much the engine has computed."""
        assert self.engine
        fields = Path(f"/proc/{self.engine.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def engine_bytes(self) -> int:
        """The memory of the engine (RSS)."""
        assert self.engine
        pages = Path(f"/proc/{self.engine.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def running_stack(
    folder: Path, *, behind_nginx: bool, engines: int = 1, send_timeout: float | None = None
) -> Generator[tuple[StreamingStack, int]]:
    """The running processes, and the port where clients go, for as long as the block.

    Raises:
        UnableHereError: there is no nginx.
    """
    if behind_nginx and (reason := nginx.missing()):
        raise UnableHereError(reason)
    with ExitStack() as stack:
        target = StreamingStack(folder, send_timeout=send_timeout, database="postgres" if engines > 1 else "sqlite")
        stack.callback(target.close)
        target.start_all()
        ports = [target.engine_port]
        for number in range(2, engines + 1):
            ports.append(free_port())
            target.run_engine(ports[-1], f"engine-{number}")
        if not behind_nginx:
            yield target, target.engine_port
            return
        url = stack.enter_context(running_nginx(folder / "nginx", ports))
        yield target, int(url.rpartition(":")[2])
