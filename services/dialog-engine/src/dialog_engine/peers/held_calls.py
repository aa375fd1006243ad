"""What workers say of the calls that they keep open while people are asked: see `plugins_contract.held`."""

from collections.abc import Mapping
from typing import Any

import msgspec
from redis.asyncio import Redis

from callstream_runtime.pool_directory import PoolDirectory
from dialog_engine.chat.held_questions import HeldCalls
from plugins_contract.held import HeldCall, readable
from plugins_contract.keys import Keys


class RedisHeldCalls(HeldCalls):
    """The calls of all workers."""

    def __init__(self, redis: Redis, keys: Keys, pools: PoolDirectory) -> None:
        self._redis: Any = redis  # redis-py types its commands only partly
        self._keys = keys
        self._pools = pools

    async def read(self) -> Mapping[str, HeldCall]:
        return dict(readable(await self._redis.hgetall(self._keys.held)))

    async def lives(self, pool: str) -> bool:
        return await self._pools.lives(pool)

    async def end(self, request_id: str) -> None:
        message = msgspec.json.encode({"kind": "cancel", "correlationId": request_id})
        await self._redis.publish(self._keys.control, message)
        await self.forget(request_id)

    async def forget(self, request_id: str) -> None:
        await self._redis.hdel(self._keys.held, request_id)
