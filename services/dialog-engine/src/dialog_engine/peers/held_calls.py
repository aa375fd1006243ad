"""What workers say of the calls that they keep open while people are asked: see `plugins_contract.held`."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
from redis.asyncio import Redis

from callstream_runtime.pool_directory import PoolDirectory
from dialog_engine.chat.held_questions import HeldCalls
from plugins_contract.held import HeldCall, readable
from plugins_contract.keys import Keys


class RedisHeldCalls(HeldCalls):
    """The calls of all workers."""

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        pools: PoolDirectory,
        *,
        now_ms: Callable[[], int],
        steady_for: Callable[[], float],
    ) -> None:
        """`now_ms` is the clock of Redis. `steady_for` returns for how many seconds Redis has been steady."""
        self._redis: Any = redis  # redis-py types its commands only partly
        self._keys = keys
        self._pools = pools
        self._now_ms = now_ms
        self._steady_for = steady_for
        self._announced: Mapping[str, int] = {}
        """When the workers that were last asked about announced themselves: Redis may have lost their rows."""

    async def read(self) -> Mapping[str, HeldCall]:
        return dict(readable(await self._redis.hgetall(self._keys.held)))

    async def silent(self, pools: Collection[str]) -> Mapping[str, float]:
        found = {pool: await self._pools.announced(pool) for pool in pools}
        now = self._now_ms()
        self._announced = {pool: self._announced.get(pool, now) if at is None else at for pool, at in found.items()}
        return {pool: min((now - at) / 1000, self._steady_for()) for pool, at in self._announced.items()}

    async def end(self, request_id: str) -> None:
        message = msgspec.json.encode({"kind": "cancel", "correlationId": request_id})
        await self._redis.publish(self._keys.control, message)
        await self.forget(request_id)

    async def forget(self, request_id: str) -> None:
        await self._redis.hdel(self._keys.held, request_id)
