"""Reads in Redis which pools of workers there are, and finds one for a call: see `plugins_contract.pools`."""

import random
import time
from typing import Any

import msgspec
from redis.asyncio import Redis

from callstream_runtime.clock import Clock
from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.keys import Keys
from plugins_contract.ledger import steps
from plugins_contract.ledger.scripts import Scripts
from plugins_contract.pools import SILENT_MS, Member, Pools, Route, readable

READ_AGAIN_SECONDS = 1.0
"""How long the rows of all workers are kept."""
LOOK_AGAIN_SECONDS = 0.1
"""The same while no pool fits a call."""
RECALLED_AT_ONCE = 100


class PoolDirectory:
    """The pools, as workers announce them in Redis. Raises `RedisUnavailable`."""

    def __init__(self, redis: Redis, keys: Keys, clock: Clock, *, silent_ms: int = SILENT_MS) -> None:
        self._redis: Any = redis  # redis-py types its commands only partly
        self._scripts = Scripts(redis)
        self._keys = keys
        self._clock = clock
        self._last = Pools({}, 0, silent_ms)
        self._read_at = float("-inf")

    async def find(self, server: str, version: int) -> str | None:
        """A pool for a call, chosen at random among the workers that can run it; None when no running worker can.

        While Redis is unavailable, what was known last decides: whoever uses the pool learns of the outage.
        """
        try:
            found = (await self._pools(READ_AGAIN_SECONDS)).fitting(server, version)
            if not found:
                found = (await self._pools(LOOK_AGAIN_SECONDS)).fitting(server, version)
        except RedisUnavailable:
            found = self._last.fitting(server, version)
        return random.choice(found) if found else None

    async def route(self, server: str, version: int) -> Route:
        """Where an engine sends a call: to a worker that can open a session where the server keeps state, else as
        `find` says, and to all workers without a pool.
        """
        pool = await self.find(server, version)
        return self._last.with_room(server, version) or Route(pool or "")

    async def lives(self, own: str) -> bool:
        """Whether the worker with this pool of its own is running."""
        return (await self._pools(READ_AGAIN_SECONDS)).lives(own)

    async def announced(self, own: str) -> int | None:
        """When the worker with this pool of its own announced itself last, as `Pools.announced` says it."""
        return (await self._pools(READ_AGAIN_SECONDS)).announced(own)

    async def announce(self, worker: str, member: Member) -> None:
        """Write the row of a worker."""
        row = msgspec.json.encode(member)
        await self._redis.execute_command("HSET", self._keys.pools, worker, row)

    async def streams(self) -> list[str]:
        """The streams of requests that may hold something, `events.plugins` first."""
        pools = {pool for each in (await self._pools(0)).members.values() for pool in each.pools}
        return [self._keys.requests, *(self._keys.requests_of(pool) for pool in sorted(pools))]

    async def recall(self, *, lease_ms: int) -> int:
        """Move what lies in pools without workers to `events.plugins`, and forget pools that are empty.

        Returns how many requests were moved.
        """
        pools = await self._pools(0)
        kept, moved = set[str](), 0
        for pool in pools.abandoned():
            step = steps.recall(
                requests=self._keys.requests,
                stream=self._keys.requests_of(pool),
                lease_ms=lease_ms,
                most=RECALLED_AT_ONCE,
                calls=self._keys.call(""),
            )
            count, left = await self._scripts.run(step)
            moved += count
            kept |= {pool} if left else set()
        gone = [n for n, each in pools.members.items() if not pools.is_live(each) and kept.isdisjoint(each.pools)]
        if gone:
            await self._redis.execute_command("HDEL", self._keys.pools, *gone)
        return moved

    async def _pools(self, max_age: float) -> Pools:
        if time.monotonic() - self._read_at >= max_age:
            rows: dict[bytes, bytes] = await self._redis.hgetall(self._keys.pools)
            self._last = self._last.read_again(dict(readable(rows)), self._clock.now_ms())
            self._read_at = time.monotonic()
        return self._last
