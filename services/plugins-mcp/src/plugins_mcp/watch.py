"""Keeps an eye on Redis: what time it has there, and for how long it has been steady.

Idle times in the group's pending list go on growing while Redis is away and jump when its clock does. Until every
living worker has had the time to renew its leases, an entry that looks abandoned may not be.
"""

import asyncio
import time
from typing import Any

from redis.asyncio import Redis

from plugins_contract.clock import RedisClock
from plugins_contract.connections import is_outage

ASK_SECONDS = 1.0
GAP_SECONDS = 5.0
"""Without an answer for so long, nobody knows what happened meanwhile; that this process slept counts as well."""
STEP_SECONDS = 1.0
"""The clock of Redis may drift; further off than this, it was set."""


class RedisWatch:
    """Samples the clock of Redis for `clock`."""

    def __init__(self, redis: Redis, clock: RedisClock) -> None:
        self._redis = redis
        self._clock = clock
        self._answered_at = 0.0
        self._offset = 0.0
        self._steady_since: float | None = None

    def steady_for(self) -> float:
        """For how many seconds Redis has answered, with its clock going evenly, as far as it is known here."""
        now = time.monotonic()
        if self._steady_since is None or now - self._answered_at > GAP_SECONDS:
            return 0.0
        return now - self._steady_since

    async def run(self) -> None:
        """Ask, for ever."""
        while True:
            await self.ask()
            await asyncio.sleep(ASK_SECONDS)

    async def ask(self) -> None:
        """Ask once. Redis being away is no error."""
        sent_at = time.monotonic()
        try:
            answer: Any = await self._redis.time()
            received_at = time.monotonic()
            await self._redis.ping()  # refused as writes are when the disk is full; TIME is not
        except Exception as error:
            if not is_outage(error):
                raise
            self._steady_since = None
            return
        self.sample(answer, sent_at, received_at)

    def sample(self, redis_time: tuple[int, int], sent_at: float, received_at: float) -> None:
        """Take one answer of TIME: `(seconds, microseconds)`, asked and answered at these monotonic seconds."""
        seconds, microseconds = redis_time
        offset = seconds + microseconds / 1e6 - (sent_at + received_at) / 2
        stepped = abs(offset - self._offset) > STEP_SECONDS + (received_at - sent_at)
        if self._steady_since is None or stepped or received_at - self._answered_at > GAP_SECONDS:
            self._steady_since = received_at
        self._answered_at, self._offset = received_at, offset
        self._clock.sample(redis_time, sent_at, received_at)
