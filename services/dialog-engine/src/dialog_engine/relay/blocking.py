"""Asks the ledger whether calls that block others have begun: the notification of that may have been lost."""

import asyncio
from typing import Any

from callstream_runtime.pipelined import PipelinedRedis
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.relay.publish_queue import PublishQueue
from plugins_contract.keys import Keys

CHECKED = 256
"""How many calls that block others are looked up at once."""


class BlockingCalls:
    """The published calls of one engine for which others are held back."""

    def __init__(self, redis: PipelinedRedis, keys: Keys, queue: PublishQueue, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._redis = redis
        self._keys = keys
        self._queue = queue
        self._check_at = 0.0

    async def check(self) -> None:
        """Ask, at most once in `poll_seconds`, and release what is not blocked any more."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._check_at:
            return
        self._check_at = loop.time() + self._poll_seconds
        calls = self._queue.blocking(CHECKED)
        if not calls:
            return
        pipeline = self._redis.pipeline(transaction=False)
        for call in calls:
            pipeline.hget(self._keys.call(call), "state")
        try:
            states: Any = await pipeline.execute()
        except RedisUnavailable:
            return
        for call, state in zip(calls, states, strict=True):
            if state != b"published":
                self._queue.begun(call)
