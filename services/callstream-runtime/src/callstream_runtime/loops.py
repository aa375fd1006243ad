"""Background loops of both services: restarted when they fail, and fed by pub/sub."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from redis.asyncio import Redis

from callstream_runtime.redis_errors import RedisUnavailable

log = logging.getLogger(__name__)

RESTART_SECONDS = 1.0
LISTEN_SECONDS = 2.5
"""After so long without a message the server is sent a PING, and has as long to answer."""


@contextlib.asynccontextmanager
async def kept_running(*loops: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Run each loop in a task while the context is open. A loop that fails is logged and started again."""

    async def keep(run: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            try:
                await run()
            except Exception:
                log.exception("%s failed and is started again", name)
            await asyncio.sleep(RESTART_SECONDS)

    names = [getattr(getattr(run, "func", run), "__qualname__", repr(run)) for run in loops]  # `func` of a partial
    tasks = [asyncio.create_task(keep(run, name), name=name) for run, name in zip(loops, names, strict=True)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def follow(redis: Redis, channel: str, receive: Callable[[bytes | None], None]) -> None:
    """Subscribe to `channel` and call `receive` with each message. Subscribes again after an outage.

    `receive` gets None after each subscription: messages before it were missed. `redis` is a blocking client made for
    `LISTEN_SECONDS`. Runs until cancelled.
    """
    while True:
        try:
            async with contextlib.aclosing(messages(redis, channel)) as received:
                async for data in received:
                    receive(data)
        except RedisUnavailable:
            pass  # `receive` gets None after the next subscription
        await asyncio.sleep(RESTART_SECONDS)


async def messages(redis: Redis, channel: str) -> AsyncGenerator[bytes | None]:
    """The messages of `channel`, without an end; None once the subscription stands.

    Pub/sub alone never notices a server that has fallen silent, so a quiet channel is checked with PING.

    Raises:
        RedisUnavailable: the connection broke, or the server is silent.
    """
    async with redis.pubsub() as pubsub:
        await pubsub.subscribe(channel)
        pinged = False
        while True:
            message: Any = await _next_message(pubsub)
            if message is None:
                if pinged:
                    raise RedisUnavailable(f"the server was silent for {2 * LISTEN_SECONDS:g} s")
                await pubsub.ping()
                pinged = True
                continue
            pinged = False
            match message["type"]:
                case "message":
                    yield message["data"]
                case "subscribe":
                    yield None
                case _:
                    pass  # the answer to the PING


async def _next_message(pubsub: Any) -> Any:
    return await pubsub.get_message(timeout=LISTEN_SECONDS)
