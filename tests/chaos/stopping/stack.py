"""The whole product with two engines, the strict model, and an MCP server whose tools can be stopped."""

import json
import os
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local.ports import free_port
from tests.chaos.stopping.notes import Noted
from tests.integration.servers import accepts
from tests.support.processes import ROOT, Process
from tests.support.replicas import Replica
from tests.support.stack import START_SECONDS, Stack
from tests.support.waiting import wait_until_blocking

TODAY, BEFORE, NARROW, ASKING = "today", "before", "narrow", "asking"
"""Servers: in each era of the protocol, with room for one call, and with a person who must approve."""
ENV = {"LOG_LEVEL": "WARNING", "MCP_REQUEST_TIMEOUT_MS": "60000"}


@dataclass
class StoppingStack(Stack):
    """Engines "one" and "two" are replicas beside the stack's own, which does not run."""

    legacy_port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        def server(port: int, **options: object) -> dict[str, object]:
            return {"type": "http", "url": f"http://127.0.0.1:{port}/mcp", "callstream": options}

        super().__post_init__()
        self.notes = self.folder / "notes.jsonl"
        servers = {
            TODAY: server(self.demo_port, concurrency=64),
            BEFORE: server(self.legacy_port, concurrency=64),
            NARROW: server(self.demo_port, concurrency=1),
            ASKING: server(self.demo_port, approval="always"),
        }
        self.config_path.write_text(json.dumps({"mcpServers": servers}))

    def start_model(self) -> None:
        self._run([sys.executable, "-m", "tests.chaos.stopping.model", str(self.model_port), str(self.notes)], None)

    def start_demo(self) -> Process:
        ports = [str(self.demo_port), str(self.legacy_port)]
        return self._run([sys.executable, "-m", "tests.chaos.stopping.server", *ports, str(self.notes)], None)

    def close(self) -> None:
        """End everything at once. How it ends in good order is not the scenario's question."""
        for part in self.parts:
            part.kill()
        super().close()

    def noted(self) -> Noted:
        """What was noted so far."""
        return Noted.read(self.notes)


@contextmanager
def running_stage(folder: Path, source: str) -> Generator[tuple[StoppingStack, Replica, Replica]]:
    """It runs for as long as the block. `source` is put in front of the installed services."""
    path = {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"} if source else {}
    stack = StoppingStack(folder, engine_env={**ENV, **path}, worker_env=path, database="postgres")
    try:
        stack.start_store()
        stack.redis.start()
        stack.start_model()
        stack.start_demo()
        for port in (stack.model_port, stack.demo_port, stack.legacy_port):
            wait_until_blocking(lambda port=port: accepts(port), START_SECONDS, what="the model and the MCP server")
        stack.start_worker()
        with closing(Replica(stack, "one")) as one, closing(Replica(stack, "two")) as two:
            for replica in (one, two):
                replica.wait_for_tools()
            yield stack, one, two
    finally:
        stack.close()
