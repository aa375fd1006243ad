"""Whether Redis answers, and what time it is there."""

import asyncio
import logging
import time
from typing import Any

from redis.asyncio import Redis

from plugins_contract.clock import RedisClock
from plugins_contract.connections import describe_outage, is_outage

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
RETRY_SECONDS = 0.5
ANSWER_SECONDS = 2.0


class RedisWatch:
    """Asks Redis for its time, again and again."""

    def __init__(self, redis: Redis, clock: RedisClock) -> None:
        self._redis = redis
        self._clock = clock
        self.available = False
        """Whether the last question was answered."""

    async def run(self) -> None:
        """Ask, for ever."""
        while True:
            await self.ask()
            await asyncio.sleep(INTERVAL_SECONDS if self.available else RETRY_SECONDS)

    async def ask(self) -> None:
        """Ask once."""
        sent_at = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer: Any = await self._redis.time()
        except Exception as error:
            if not is_outage(error):
                log.exception("Redis does not tell its time")
            if self.available:
                log.warning("Redis does not answer: %s", describe_outage(error))
            self.available = False
            return
        self._clock.sample(answer, sent_at, time.monotonic())
        if not self.available:
            log.info("Redis answers")
        self.available = True
