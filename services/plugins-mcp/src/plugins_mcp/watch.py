"""Keeps an eye on Redis: what time it has there, and for how long it has been steady.

Idle times in the group's pending list go on growing while Redis is away and jump when its clock does, and a replica
that takes over may not know what was begun last. Until every living worker has had the time to renew its leases, an
entry that looks abandoned, or new, may be neither.
"""

import asyncio
import time
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from plugins_contract.clock import RedisClock
from plugins_contract.connections import is_outage
from plugins_contract.keys import GROUP, Keys

ASK_SECONDS = 1.0
ASK_AGAIN_SECONDS = 0.25
"""While there is no answer."""
GAP_SECONDS = 5.0
"""Without an answer for so long, nobody knows what happened meanwhile; that this process slept counts as well."""
STEP_SECONDS = 1.0
"""The clock of Redis may drift; further off than this, it was set."""


class RedisWatch:
    """Samples the clock of Redis for `clock`."""

    def __init__(self, redis: Redis, keys: Keys, clock: RedisClock) -> None:
        self._redis = redis
        self._keys = keys
        self._clock = clock
        self._answered_at = 0.0
        self._offset = 0.0
        self._run_id: str | None = None
        self._may_ask_who = True
        self._steady_since: float | None = None

    def steady_for(self) -> float:
        """For how many seconds one server has answered and taken writes, its clock going evenly, as far as known."""
        now = time.monotonic()
        if self._steady_since is None or now - self._answered_at > GAP_SECONDS:
            return 0.0
        return now - self._steady_since

    async def run(self) -> None:
        """Ask, for ever."""
        while True:
            await self.ask()
            await asyncio.sleep(ASK_AGAIN_SECONDS if self._steady_since is None else ASK_SECONDS)

    async def ask(self) -> None:
        """Ask once. Redis being away is no error."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        # A write that changes nothing: a server that loads its data, has a full disk or is a replica tells the time as
        # if nothing were wrong, and takes no renewals.
        pipeline.xack(self._keys.requests, GROUP, "0-0")
        if self._may_ask_who:
            pipeline.info("server")
        sent_at = time.monotonic()
        try:
            now, written, *who = await pipeline.execute(raise_on_error=False)
            _raise_first(now, written)
        except Exception as error:
            if not is_outage(error):
                raise
            self._steady_since = None
            return
        self.sample(now, sent_at, time.monotonic(), self._read_run_id(*who))

    def sample(
        self, redis_time: tuple[int, int], sent_at: float, received_at: float, run_id: str | None = None
    ) -> None:
        """Take one answer of TIME: `(seconds, microseconds)`, asked and answered at these monotonic seconds.

        `run_id` is another for every life of a server; None when it is not told.
        """
        seconds, microseconds = redis_time
        offset = seconds + microseconds / 1e6 - (sent_at + received_at) / 2
        stepped = abs(offset - self._offset) > STEP_SECONDS + (received_at - sent_at)
        another = run_id is not None and self._run_id not in (None, run_id)
        begins_anew = self._steady_since is None or stepped or another or received_at - self._answered_at > GAP_SECONDS
        self._answered_at, self._offset, self._run_id = received_at, offset, run_id or self._run_id
        self._clock.sample(redis_time, sent_at, received_at)
        if begins_anew:
            self._steady_since = received_at

    def _read_run_id(self, info: Any = None) -> str | None:
        if isinstance(info, NoPermissionError):
            self._may_ask_who = False  # not allowed by its ACL, which notes every refusal
        return info.get("run_id") if isinstance(info, dict) else None  # pyright: ignore[reportUnknownVariableType]


def _raise_first(now: Any, written: Any) -> None:
    if isinstance(now, Exception):
        raise now
    # That the key is something else than a stream is the consumer's worry.
    if isinstance(written, Exception) and is_outage(written):
        raise written
