"""Real MCP servers that a scenario can strike: a child process of the worker, and one over HTTP."""

import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.local.ports import free_port
from tests.support.processes import ROOT, Process, answers
from tests.support.waiting import wait_until

START_SECONDS = 60.0
DEMO = "-m examples.demo_server"
STANDBY = """
import errno, socket, sys, time
from examples.demo_server.__main__ import main
while True:
    try:
        socket.create_server(("127.0.0.1", int(sys.argv[2]))).close()
        break
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        time.sleep(0.02)
main()
"""


@dataclass
class Child:
    """A child process of the worker. Its command leaves its process id in a file."""

    folder: Path
    name: str

    def __post_init__(self) -> None:
        self.log = self.folder / f"{self.name}.log"
        self._pid_file = self.folder / f"{self.name}.pid"

    def entry(self) -> dict[str, Any]:
        command = f"echo $$ > '{self._pid_file}'; exec '{sys.executable}' {DEMO} --transport stdio"
        env = {"DEMO_EFFECT_LOG": str(self.log)}
        return {"command": "/bin/sh", "args": ["-c", command], "env": env, "cwd": str(ROOT)}

    async def start(self) -> None:
        """The worker does that."""

    async def kill(self) -> None:
        os.kill(int(self._pid()), signal.SIGKILL)

    async def replaced(self) -> None:
        """End it and wait until the worker, which has noticed, starts another."""
        before = self._pid()
        await self.kill()
        await wait_until(lambda: self._pid() not in ("", before), START_SECONDS, what=f"another {self.name}")

    def close(self) -> None:
        """It ends with its worker."""

    def _pid(self) -> str:
        return self._pid_file.read_text().strip()


@dataclass
class Remote:
    """A server over Streamable HTTP, started and ended here. Another stands by to take its place."""

    folder: Path
    name: str
    _process: Process | None = None
    _next: Process | None = None
    _stopped: bool = False
    _port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.log = self.folder / f"{self.name}.log"

    def entry(self) -> dict[str, Any]:
        return {"url": f"http://127.0.0.1:{self._port}/mcp"}

    async def start(self) -> None:
        """Start it, unless it runs and was not stopped, and wait until it answers."""
        if self._process is not None and self._process.returncode is None and not self._stopped:
            return
        self._leave()
        process = self._process = self._next or self._stand_by()
        url = f"http://127.0.0.1:{self._port}/healthz"
        await wait_until(lambda: process.ready(lambda: answers(url)), START_SECONDS, what=f"{self.name} to answer")
        self._next = self._stand_by()

    def _stand_by(self) -> Process:
        """One that serves as soon as the port is free: how fast this machine starts a process plays no part."""
        return Process(
            [sys.executable, "-c", STANDBY, "--port", str(self._port)], env={"DEMO_EFFECT_LOG": str(self.log)}
        )

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    def stop(self) -> None:
        """Let it stand still (SIGSTOP)."""
        assert self._process is not None
        self._process.send(signal.SIGSTOP)
        self._stopped = True

    def _leave(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.close()
            self._process, self._stopped = None, False

    def close(self) -> None:
        for process in filter(None, (self._next, self._process)):
            process.kill()
            process.close()
        self._process, self._next, self._stopped = None, None, False


def runs(log: Path, token: str) -> int:
    """How often the tool ran that was given this token: a counter that rose, or a job that began."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return sum(line.get("token") == token and line.get("status", "started") == "started" for line in lines)
