"""Whether Redis answers, and what time it is there."""

import asyncio
import logging
import time
from typing import Any

from redis.asyncio import Redis

from plugins_contract.clock import RedisClock
from plugins_contract.connections import describe_outage, is_outage

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
RETRY_SECONDS = 0.5
ANSWER_SECONDS = 2.0
GAP_SECONDS = 5.0
"""Without an answer for so long, nobody knows what happened meanwhile; that this process slept counts as well."""
STEP_SECONDS = 1.0
"""The clock of Redis may drift; further off than this, it was set."""


class RedisWatch:
    """Asks Redis for its time, again and again."""

    def __init__(self, redis: Redis, clock: RedisClock) -> None:
        self._redis = redis
        self._clock = clock
        self.available = False
        """Whether the last question was answered."""
        self._answered_at = 0.0
        self._offset = 0.0
        self._steady_since = 0.0
        self._complaint = ""

    def steady_for(self) -> float:
        """For how many seconds Redis has answered, with its clock going evenly, as far as it is known here."""
        now = time.monotonic()
        if not self.available or now - self._answered_at > GAP_SECONDS:
            return 0.0
        return now - self._steady_since

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.ask()
            await asyncio.sleep(INTERVAL_SECONDS if self.available else RETRY_SECONDS)

    async def ask(self) -> None:
        """Ask once."""
        sent_at = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer: Any = await self._redis.time()
                received_at = time.monotonic()
                await self._redis.ping()  # refused as writes are when the disk is full; TIME is not
        except Exception as error:
            if not is_outage(error):
                log.exception("Redis does not tell its time")
            self._complain(describe_outage(error))
            self.available = False
            return
        self.sample(answer, sent_at, received_at)
        if not self.available:
            log.info("Redis answers")
        self.available, self._complaint = True, ""

    def _complain(self, why: str) -> None:
        """Log each reason once, not twice a second."""
        if why != self._complaint:
            log.warning("Redis does not answer: %s", why)
        self._complaint = why

    def sample(self, redis_time: tuple[int, int], sent_at: float, received_at: float) -> None:
        """Take one answer of TIME: `(seconds, microseconds)`, asked and answered at these monotonic seconds."""
        seconds, microseconds = redis_time
        offset = seconds + microseconds / 1e6 - (sent_at + received_at) / 2
        stepped = abs(offset - self._offset) > STEP_SECONDS + (received_at - sent_at)
        if not self.available or stepped or received_at - self._answered_at > GAP_SECONDS:
            self._steady_since = received_at
        self._answered_at, self._offset = received_at, offset
        self._clock.sample(redis_time, sent_at, received_at)
