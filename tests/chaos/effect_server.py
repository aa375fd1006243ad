"""`python -m tests.chaos.effect_server PORT LOG`: an MCP server whose two tools leave lines in an append-only log.

The line is on the disk before the tool answers, and `work_ms` of work lie between the two: what dies in that gap loses
the answer and not the effect. Who wants to know how often a call really ran counts the lines with its token.
"""

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.tools import ONCE, REPEATABLE
from tests.integration.servers.scripted import Behaviour, Request, ScriptedServer

SCHEMA = {
    "type": "object",
    "properties": {"token": {"type": "string"}, "work_ms": {"type": "integer"}},
    "required": ["token", "work_ms"],
}


@dataclass(frozen=True, slots=True)
class Effect:
    """One run of a tool, at this Unix time in seconds."""

    tool: str
    token: str
    at: float


def effects_in(path: Path) -> list[Effect]:
    """Every effect so far. A line that is just being written counts with the next reading."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [Effect(**json.loads(line)) for line in whole.splitlines()]


def server_of(log: Path) -> ScriptedServer:
    """The server; the second tool says of itself that it may run again."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def tool(name: str) -> Behaviour:
        async def run(request: Request) -> None:
            arguments = request.params["arguments"]
            line = {"tool": name, "token": arguments["token"], "at": time.time()}
            os.write(file, json.dumps(line).encode() + b"\n")
            os.fdatasync(file)
            await asyncio.sleep(arguments["work_ms"] / 1000)
            await request.text("done")

        return run

    hints: dict[str, Any] = {"readOnlyHint": True, "idempotentHint": True}
    return ScriptedServer(
        behaviours={name: tool(name) for name in (ONCE, REPEATABLE)},
        tools=[
            {"name": ONCE, "description": "Runs once.", "inputSchema": SCHEMA},
            {"name": REPEATABLE, "description": "May run again.", "inputSchema": SCHEMA, "annotations": hints},
        ],
    )


async def main(port: int, log: Path) -> None:
    """Serve until the process ends."""
    server = server_of(log)
    server.port = port
    server.keep_requests = False
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
