"""A worker and its caller in one test: tool calls put on the stream, and the worker's parts or the whole of it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from callstream_runtime.connections import command_client, thread_client
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallFinished, CallProgress, ToolOutcome
from plugins_mcp.config import Settings
from plugins_mcp.leases import LeaseTimes
from plugins_mcp.mcp import ConnectionPolicy
from plugins_mcp.wiring import run_worker
from tests.support.ledger import Bench
from tests.support.quick_worker import QUICK
from tests.support.waiting import wait_until


class Caller(Bench):
    """The engine's side of the demo server's tools."""

    async def call(
        self,
        tool: str = "echo",
        *,
        server: str = "demo",
        execution_class: str = "once",
        expires_in_ms: int = 60_000,
        subject: str = "somebody",
        **arguments: Any,
    ) -> ToolCallRequested:
        request = msgspec.structs.replace(
            await self.request(execution_class, expires_in_ms=expires_in_ms),
            server=server,
            tool=tool,
            tool_name=f"{server}__{tool}",
            subject=subject,
            arguments=arguments or {"text": "hello"},
        )
        await self.engine.enqueue(request)
        return request

    async def outcome(self, request: ToolCallRequested, timeout: float = 20.0) -> ToolOutcome:
        async def finished() -> list[CallFinished]:
            return [reply for reply in await self.channel(request) if isinstance(reply, CallFinished)]

        (reply,) = await wait_until(finished, timeout, what=f"an answer to {request.tool_name}")
        return reply.outcome

    async def has_ended(self, request: ToolCallRequested) -> bool:
        return any(isinstance(reply, CallFinished) for reply in await self.channel(request))

    async def starts(self, request: ToolCallRequested) -> int:
        """How often the call was begun, as its ledger entry says."""
        return int(await self.redis.hget(self.keys.call(request.correlation_id), "starts") or 0)

    async def starts_again(self, request: ToolCallRequested) -> bool:
        return await self.starts(request) > 1

    async def progress(self, request: ToolCallRequested) -> list[float]:
        return [reply.progress for reply in await self.channel(request) if isinstance(reply, CallProgress)]

    async def started(self, request: ToolCallRequested) -> None:
        await wait_until(lambda: self.starts(request), 20, what=f"the start of {request.tool_name}")

    async def backlog_is_empty(self) -> bool:
        return await self.backlog() == 0

    async def nothing_pending(self) -> bool:
        return not await self.pending()

    async def raw_dead_letters(self) -> list[dict[bytes, bytes]]:
        """The dead letters as they are, which need not be text."""
        return [fields for _, fields in await self.redis.xrange(self.keys.dead)]


@asynccontextmanager
async def calling(url: str) -> AsyncGenerator[Caller]:
    redis = command_client(url)
    with thread_client(url) as thread:
        yield Caller(redis, thread)
    await redis.aclose()


@asynccontextmanager
async def working(
    url: str, config: Path, times: LeaseTimes = QUICK, policy: ConnectionPolicy | None = None, **settings: Any
) -> AsyncGenerator[asyncio.Event]:
    """A whole worker in this process, with short leases, for as long as the block; the event ends it earlier."""
    stopping = asyncio.Event()
    values: dict[str, Any] = {"redis_url": url, "mcp_config": config, "health_port": 0, "drain_seconds": 5.0} | settings
    worker = asyncio.create_task(run_worker(Settings(**values), stopping, times, policy))
    try:
        yield stopping
    finally:
        stopping.set()
        await worker
