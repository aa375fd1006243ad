"""Listens on a pub/sub channel, and notices a server that has fallen silent: pub/sub itself never would."""

from collections.abc import AsyncGenerator
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

LISTEN_SECONDS = 2.5
"""After so long a silence the server is asked whether it is there, and has as long to answer."""


async def announcements(redis: Redis, channel: str) -> AsyncGenerator[bytes | None]:
    """What is published on `channel`, for ever; None once we are subscribed, as whatever came before was missed.

    `redis` is a blocking client made for `LISTEN_SECONDS`.

    Raises:
        redis.exceptions.ConnectionError, redis.exceptions.TimeoutError: the connection broke, or fell silent.
    """
    async with redis.pubsub() as pubsub:
        await pubsub.subscribe(channel)
        asked = False
        while True:
            message = await _heard(pubsub)
            if message is None:
                if asked:
                    raise RedisTimeoutError(f"nothing was heard for {2 * LISTEN_SECONDS:g} s")
                await pubsub.ping()
                asked = True
                continue
            asked = False
            match message["type"]:
                case "message":
                    yield message["data"]
                case "subscribe":
                    yield None
                case _:
                    pass  # an answer to our question


async def _heard(pubsub: Any) -> Any:
    return await pubsub.get_message(timeout=LISTEN_SECONDS)
