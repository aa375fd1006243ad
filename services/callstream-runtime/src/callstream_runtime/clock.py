"""The time of Redis, and for how long Redis has been steady. Deadlines are on that clock, not on any machine's.

Idle times in the group's pending list keep growing while Redis is away and jump when its clock does, and a replica
that takes over may not know what was begun last. So an entry that looks abandoned is taken over only when Redis has
been steady for long enough that every living worker has renewed its leases.
"""

import asyncio
import logging
import time
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.keys import GROUP, Keys

log = logging.getLogger(__name__)

ASK_SECONDS = 1.0
ASK_AGAIN_SECONDS = 0.25
"""The pause while there is no answer."""
GAP_SECONDS = 5.0
"""After so long without an answer Redis was not steady. That this process slept counts as well."""
STEP_SECONDS = 1.0
"""The clock of Redis may drift by less than this between two answers; a larger difference means that it was set."""


class Clock(Protocol):
    """Tells the time of Redis."""

    def now_ms(self) -> int:
        """Unix milliseconds on the clock of Redis, as precisely as it is known here."""
        ...


class RedisClock:
    """Follows the clock of Redis by samples, and runs on the monotonic clock between them.

    Before the first sample it follows this machine's own clock: when Redis is down at the start a deadline is still a
    sensible number, and the engine enforces it by its own monotonic timer anyway.
    """

    def __init__(self) -> None:
        self._offset_ms = time.time() * 1000 - time.monotonic() * 1000

    def sample(self, redis_time: tuple[int, int], sent_at: float, received_at: float) -> None:
        """Take one answer of TIME: `(seconds, microseconds)`, asked and answered at these monotonic seconds."""
        seconds, microseconds = redis_time
        middle_ms = (sent_at + received_at) / 2 * 1000
        self._offset_ms = seconds * 1000 + microseconds / 1000 - middle_ms

    def now_ms(self) -> int:
        """Unix milliseconds on the clock of Redis."""
        return int(time.monotonic() * 1000 + self._offset_ms)


class RedisWatch:
    """Asks Redis once a second for its time, and samples it for `clock`."""

    def __init__(self, redis: Redis, keys: Keys, clock: RedisClock, *, answer_seconds: float = 2.0) -> None:
        """Redis is not available when it takes longer than `answer_seconds`."""
        self._redis = redis
        self._answer_seconds = answer_seconds
        self._keys = keys
        self._clock = clock
        self.available = False
        """Whether the last question was answered, and Redis takes writes."""
        self._answered_at = 0.0
        self._offset = 0.0
        self.run_id: str | None = None
        """The run id of the server that answered last; None while it is not known, or cannot be read."""
        self._may_read_run_id = True
        self._steady_since = 0.0
        self._logged = ""

    def steady_for(self) -> float:
        """For how many seconds one server is known to have answered and taken writes, with its clock running evenly."""
        now = time.monotonic()
        if not self.available or now - self._answered_at > GAP_SECONDS:
            return 0.0
        return now - self._steady_since

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self.ask()
            await asyncio.sleep(ASK_SECONDS if self.available else ASK_AGAIN_SECONDS)

    async def ask(self) -> None:
        """Ask once. An outage is logged, each reason once, and not raised."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        # A write that changes nothing: a server that loads its data, has a full disk or is a replica still tells the
        # time, and takes no renewals.
        pipeline.xack(self._keys.requests, GROUP, "0-0")
        if self._may_read_run_id:
            pipeline.info("server")
        sent_at = time.monotonic()
        try:
            async with asyncio.timeout(self._answer_seconds):
                now, written, *info = await pipeline.execute(raise_on_error=False)
            _raise_first(now, written)
        except (RedisError, TimeoutError) as error:
            self.available = False
            self._log_once(str(error) or f"it takes longer than {self._answer_seconds:g} s")
            return
        self.sample(now, sent_at, time.monotonic(), self._read_run_id(*info))
        if not self.available:
            log.info("Redis answers")
        self.available, self._logged = True, ""

    def sample(
        self, redis_time: tuple[int, int], sent_at: float, received_at: float, run_id: str | None = None
    ) -> None:
        """Take one answer of TIME: `(seconds, microseconds)`, asked and answered at these monotonic seconds.

        `run_id` changes with every start of a server; it is None when it is not known.
        """
        seconds, microseconds = redis_time
        offset = seconds + microseconds / 1e6 - (sent_at + received_at) / 2
        stepped = abs(offset - self._offset) > STEP_SECONDS + (received_at - sent_at)
        restarted = run_id is not None and self.run_id not in (None, run_id)
        if not self.available or stepped or restarted or received_at - self._answered_at > GAP_SECONDS:
            self._steady_since = received_at
        self._answered_at, self._offset, self.run_id = received_at, offset, run_id or self.run_id
        self._clock.sample(redis_time, sent_at, received_at)

    def _read_run_id(self, info: Any = None) -> str | None:
        if isinstance(info, RedisUnavailable) and info.code == "NOPERM":
            self._may_read_run_id = False  # the ACL of the server notes every refusal
        return info.get("run_id") if isinstance(info, dict) else None  # pyright: ignore[reportUnknownVariableType]

    def _log_once(self, reason: str) -> None:
        if reason != self._logged:
            log.warning("Redis does not answer: %s", reason)
        self._logged = reason


def _raise_first(now: Any, written: Any) -> None:
    if isinstance(now, Exception):
        raise now
    # A key that is not a stream is no outage: the consumer reports it.
    if isinstance(written, RedisUnavailable):
        raise written
