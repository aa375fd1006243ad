"""A server that keeps state, `tests.integration.servers.notes`: its workers, and the engine's side of its calls."""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from callstream_runtime.clock import RedisClock
from callstream_runtime.pool_directory import PoolDirectory
from plugins_contract.encryption import CLEAR
from plugins_contract.ledger import EngineLedger
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from plugins_contract.sessions import SessionMode, owner
from tests.support.forked import Forked, forked_server
from tests.support.processes import Process
from tests.support.waiting import wait_until
from tests.support.working import Caller, working


class Notes:
    """The engine's side of the stateful server."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.redis = caller.redis
        self.keys = caller.keys
        self.directory = PoolDirectory(caller.redis, caller.keys, RedisClock())
        self.engine = EngineLedger(caller.redis, caller.keys, cipher=CLEAR, pools=self.directory)
        self.old_engine = caller.engine

    async def ask(
        self,
        conversation: str,
        tool: str = "note",
        *,
        subject: str = "ann",
        server: str = "notes",
        old: bool = False,
        **arguments: Any,
    ) -> ToolCallRequested:
        request = msgspec.structs.replace(
            await self.caller.request(),
            session_id=conversation,
            subject=subject,
            server=server,
            tool=tool,
            arguments=arguments,
        )
        await (self.old_engine if old else self.engine).enqueue(request)
        return request

    async def result(self, conversation: str, tool: str = "note", **how: Any) -> str:
        return text(await self.caller.outcome(await self.ask(conversation, tool, **how)))

    async def outcome(self, conversation: str, tool: str = "note", **how: Any) -> ToolOutcome:
        return await self.caller.outcome(await self.ask(conversation, tool, **how))

    async def children(self) -> int:
        """How many processes of the server the workers say they have."""
        fields = await self.redis.hgetall(self.keys.catalog_of("notes"))
        return sum(
            msgspec.json.decode(beat).get("children", 0) for name, beat in fields.items() if name[:7] == b"worker:"
        )

    async def ready(self, workers: int) -> None:
        async def announced() -> bool:
            rows = await self.redis.hgetall(self.keys.pools)
            return sum(bool(msgspec.json.decode(row).get("sessions")) for row in rows.values()) >= workers

        await wait_until(announced, 20)
        await wait_until(partial(self.redis.hexists, self.keys.catalog_of("notes"), "version"), 20)


def text(outcome: ToolOutcome) -> str:
    assert outcome.state is CallState.SUCCEEDED, outcome
    return " ".join(block.text for block in outcome.content if isinstance(block, TextBlock))


def config(folder: Path, **options: Any) -> Path:
    path = folder / "mcp.json"
    callstream = {"session": "conversation"} | options
    server = forked_server("tests.integration.servers.notes", env={"FILE": "/notes/{session}"}, callstream=callstream)
    path.write_text(json.dumps({"mcpServers": {"notes": server}}))
    return path


@asynccontextmanager
async def workers(notes: Notes, url: str, path: Path, count: int) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(working(url, path))
        await notes.ready(count)
        yield


@asynccontextmanager
async def processes(notes: Notes, url: str, path: Path, count: int) -> AsyncGenerator[list[Process]]:
    """Workers in processes."""
    env = {**os.environ, "REDIS_URL": url, "MCP_CONFIG": str(path), "HEALTH_PORT": "0"}
    started = [Process(Forked("tests.support.quick_worker", ("--patient",)), env=env) for _ in range(count)]
    try:
        await notes.ready(count)
        yield started
    finally:
        for each in started:
            each.close()


async def holder(notes: Notes, conversation: str) -> int:
    """The process id of the worker that holds the session of a conversation."""
    row = await notes.redis.hget(notes.keys.session(owner(SessionMode.CONVERSATION, conversation)), "notes")
    rows = await notes.redis.hgetall(notes.keys.pools)
    (worker,) = [name for name, each in rows.items() if row.endswith(msgspec.json.decode(each)["own"].encode())]
    return int(worker.rsplit(b"-", 2)[1])
