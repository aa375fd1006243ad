"""The baseline: a message to a process and back over two Redis streams, with a consumer group and nothing else.

python -m benchmarks.floor REDIS_URL    the answering process
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from callstream_runtime.connections import blocking_client, command_client
from tests.support.processes import ROOT, Process

REQUESTS, REPLIES, GROUP = "bench:requests", "bench:replies", "bench"
BLOCK_SECONDS = 1.0
BATCH = 64


async def answer(redis_url: str) -> None:
    """Send every message back, until cancelled."""
    redis, blocking = command_client(redis_url), blocking_client(redis_url, block_seconds=BLOCK_SECONDS)
    await redis.xgroup_create(REQUESTS, GROUP, id="0", mkstream=True)
    print("answering", flush=True)
    while True:
        got: Any = await blocking.xreadgroup(
            GROUP, "one", {REQUESTS: ">"}, count=BATCH, block=int(BLOCK_SECONDS * 1000)
        )
        for entry, fields in entries(got):
            pipeline = redis.pipeline(transaction=False)
            pipeline.xadd(REPLIES, fields)
            pipeline.xack(REQUESTS, GROUP, entry)
            pipeline.xdel(REQUESTS, entry)
            await pipeline.execute()


class Floor:
    """The requesting side."""

    def __init__(self, redis_url: str) -> None:
        self._redis = command_client(redis_url)
        self._blocking = blocking_client(redis_url, block_seconds=BLOCK_SECONDS)
        self._waiting: dict[bytes, asyncio.Future[str]] = {}
        self._count = 0

    async def call(self, text: str) -> str:
        self._count += 1
        number = b"%d" % self._count
        # The reply may arrive before the reply to XADD.
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._redis.xadd(REQUESTS, {"id": number, "text": text})
        return await reply

    async def read(self) -> None:
        """Pass the replies to their callers, until cancelled."""
        last = b"0-0"
        while True:
            got: Any = await self._blocking.xread({REPLIES: last}, count=BATCH, block=int(BLOCK_SECONDS * 1000))
            for last, fields in entries(got):  # noqa: B007 -- the position of the next read
                self._waiting.pop(fields[b"id"]).set_result(fields[b"text"].decode())

    async def close(self) -> None:
        await self._redis.aclose()
        await self._blocking.aclose()


def entries(answer: Any) -> list[tuple[bytes, dict[Any, Any]]]:
    """The entries of a read of one stream."""
    streams: Any = answer.items() if isinstance(answer, dict) else answer or ()  # pyright: ignore[reportUnknownVariableType]
    found: list[tuple[bytes, dict[Any, Any]]] = []
    for _, group in streams:
        for page in group if group and isinstance(group[0], list) else [group]:
            found += page
    return found


@asynccontextmanager
async def floor(redis_url: str) -> AsyncGenerator[Floor]:
    """Run both sides for the duration of the block."""
    process = Process([sys.executable, "-m", "benchmarks.floor", redis_url], cwd=Path(ROOT))
    process.wait_ready(lambda: "answering" in process.output())
    asking = Floor(redis_url)
    reading = asyncio.create_task(asking.read())
    try:
        yield asking
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        await asking.close()
        process.stop()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(answer(sys.argv[1]))
