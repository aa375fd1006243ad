"""The demo MCP server as a process, which the tests of workers share."""

import json
from pathlib import Path

from deploy.local.ports import free_port
from tests.support.forked import Forked
from tests.support.processes import Process, answers


class Demo:
    """It begins to serve when this is made. `log` has a line for each effect of its tools."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        port = port or free_port()
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.log = folder / "effects.log"
        program = Forked("examples.demo_server", ("--port", str(port)))
        self.process = Process(program, env={"DEMO_EFFECT_LOG": str(self.log)})

    def wait_ready(self) -> None:
        """Wait until it answers. Blocking."""
        self.process.wait_ready(lambda: answers(self.url.removesuffix("mcp") + "healthz"))

    def effects(self) -> str:
        """What its tools did."""
        return self.log.read_text() if self.log.exists() else ""

    def statuses(self, token: str) -> list[str]:
        """The statuses of the calls with this token, in order."""
        effects = map(json.loads, self.effects().splitlines())
        return [effect["status"] for effect in effects if effect.get("token") == token]
