"""What one subject may consume at all engines together: requests, running turns, open streams, tokens.

The counts are in Redis. While Redis is away, or slow, each engine counts for itself: chat works without Redis, and an
outage must neither stop it nor slow it down.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from redis.asyncio import Redis

from callstream_runtime.background import BackgroundTasks
from callstream_runtime.outage_log import OutageLog
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.chat.ports import TurnLimits, TurnSlot
from dialog_engine.errors import LimitExceededError
from dialog_engine.model import Turn
from plugins_contract.keys import Keys
from plugins_contract.messages import new_id

log = logging.getLogger(__name__)

SLOT_SECONDS = 60
"""How long a slot lives that its engine does not renew, because it was killed."""
RENEW_SECONDS = 15.0
RETRY_SECONDS = 5
"""When to try again after a refusal that ends when a turn or a stream ends."""
ANSWER_SECONDS = 0.5
"""How long a request waits for Redis to count it."""
PAUSE_SECONDS = 2.0
"""After a failure Redis is not asked for so long."""
MINUTE, DAY = 60, 86_400

_TAKE = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""
"""KEYS slots; ARGV id, limit, seconds. Returns 0 when all slots are in use."""
_RENEW = """
local now = tonumber(redis.call('TIME')[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], now + tonumber(ARGV[1]), ARGV[i]) end
return redis.call('EXPIRE', KEYS[1], ARGV[1])
"""
"""KEYS slots; ARGV seconds, ids."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SubjectLimits:
    """The limits of every subject; 0 means none. Requests are per minute, tokens per day (UTC)."""

    turns: int = 0
    streams: int = 0
    requests: int = 0
    tokens: int = 0


@dataclass(eq=False, slots=True)
class Slot(TurnSlot):
    """A turn or a stream that counts until it is released."""

    consumption: "Consumption"
    key: str
    id: str = field(default_factory=new_id)
    on_release: Callable[[], None] = lambda: None
    """May be called more than once."""

    async def release(self) -> None:
        """Stop counting it. Does nothing the second time."""
        self.on_release()
        await self.consumption.release(self)


class Consumption(TurnLimits):
    """Counts what subjects consume, and refuses what is beyond the limits with LimitExceededError."""

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        limits: SubjectLimits,
        stream_opened: Callable[[str], Callable[[], None]] = lambda subject: lambda: None,
    ) -> None:
        """`stream_opened` is called with the subject of each stream that is allowed, and what it returns at its end."""
        self._stream_opened = stream_opened
        self._redis: Any = redis  # redis-py types its commands only partly
        self._keys = keys
        self._limits = limits
        self._held: dict[str, set[Slot]] = defaultdict(set)
        self._counts: dict[str, tuple[int, Counter[str]]] = {}
        """What was counted here by subject, with the window in which that was, of each kind."""
        self._counting = BackgroundTasks()
        self._ask_again_at = 0.0
        self._outages = OutageLog(log, "Redis for the limits of subjects")
        self._take: Any = self._redis.register_script(_TAKE)
        self._renew: Any = self._redis.register_script(_RENEW)

    async def run(self) -> None:
        """Renew the slots that are held here, until cancelled."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            for key, slots in [*self._held.items()]:
                await self._asked(partial(self._renew, [key], [SLOT_SECONDS, *(slot.id for slot in slots)]))

    async def close(self) -> None:
        """Wait until the turns that have ended are counted, for a bounded time."""
        await self._counting.close()

    async def request(self, subject: str) -> None:
        """Count a request."""
        if limit := self._limits.requests:
            count = await self._add("requests", subject, MINUTE, 1)
            if count > limit:
                raise LimitExceededError(f"{limit} requests per minute are allowed", _left(MINUTE))

    async def tokens_left(self, subject: str) -> None:
        if limit := self._limits.tokens:
            count = await self._add("tokens", subject, DAY, 0)
            if count >= limit:
                raise LimitExceededError(f"{limit} tokens per day are allowed, and are used up", _left(DAY))

    async def turn(self, subject: str) -> Slot:
        await self.tokens_left(subject)
        return await self._slot("turns", subject, self._limits.turns, "turns may run at the same time")

    def resumed(self, subject: str) -> Slot:
        slot = Slot(self, self._keys.limit("turns", subject))
        if self._limits.turns:
            self._held[slot.key].add(slot)
            counted = self._asked(partial(self._renew, [slot.key], [SLOT_SECONDS, slot.id]))
            self._counting.start(counted, f"a turn of {subject} goes on")
        return slot

    async def counted_turn(
        self,
        subject: str,
        start: Callable[[], Awaitable[Turn]],
        when_ended: Callable[[str, Callable[[int], None]], None],
    ) -> Turn:
        """Start a turn, and count it until `when_ended` calls back with its tokens, unless it waits. Raises also what
        `start` raises."""
        if not self._limits.turns and not self._limits.tokens:
            return await start()
        slot = await self.turn(subject)
        try:
            turn = await start()
        except BaseException:
            await slot.release()
            raise
        if turn.waits:
            await slot.release()
        else:
            self.count_until_end(slot, turn, when_ended)
        return turn

    def count_until_end(
        self, slot: TurnSlot, turn: Turn, when_ended: Callable[[str, Callable[[int], None]], None]
    ) -> None:
        async def count(tokens: int) -> None:
            try:
                await self.spent(turn.subject, tokens)
            finally:
                await slot.release()

        def ended(tokens: int) -> None:
            self._counting.start(count(tokens), f"limits of turn {turn.turn_id}")

        when_ended(turn.turn_id, ended)

    async def stream(self, subject: str) -> Slot:
        """Count an open event stream."""
        slot = await self._slot("streams", subject, self._limits.streams, "event streams may be open at the same time")
        slot.on_release = self._stream_opened(subject)
        return slot

    async def spent(self, subject: str, tokens: int) -> None:
        """Count the tokens of a turn."""
        if self._limits.tokens and tokens:
            await self._add("tokens", subject, DAY, tokens)

    async def release(self, slot: Slot) -> None:
        """See Slot."""
        held = self._held.get(slot.key)
        if held is None or slot not in held:
            return
        held.discard(slot)
        if not held:
            del self._held[slot.key]
        await self._asked(partial(self._redis.zrem, slot.key, slot.id))

    async def _slot(self, kind: str, subject: str, limit: int, what: str) -> Slot:
        slot = Slot(self, self._keys.limit(kind, subject))
        if not limit:
            return slot
        full = LimitExceededError(f"{limit} {what}", RETRY_SECONDS)
        if len(self._held.get(slot.key, ())) >= limit:
            raise full
        # Before the question, so that requests that arrive meanwhile count it too.
        self._held[slot.key].add(slot)
        try:
            taken = await self._asked(partial(self._take, [slot.key], [slot.id, limit, SLOT_SECONDS]))
        except BaseException:
            await self.release(slot)
            raise
        if taken == 0:
            await self.release(slot)
            raise full
        return slot

    async def _add(self, kind: str, subject: str, window: int, amount: int) -> int:
        """The sum of this window with `amount`, of all engines; that of this engine while Redis is away."""
        number = int(time.time()) // window
        counted_in, here = self._counts.get(kind, (number, Counter[str]()))
        if counted_in != number:
            here = Counter[str]()
        here[subject] += amount
        self._counts[kind] = number, here
        key = self._keys.limit(kind, f"{subject}:{number}")
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hincrby(key, "count", amount)
        pipeline.expire(key, 2 * window)
        answers: list[int] | None = await self._asked(pipeline.execute)
        return here[subject] if answers is None else answers[0]

    async def _asked(self, question: Callable[[], Awaitable[T]]) -> T | None:
        """The answer of Redis; None while it is away."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._ask_again_at:
            return None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await question()
        except (RedisUnavailable, TimeoutError) as error:
            self._ask_again_at = loop.time() + PAUSE_SECONDS
            self._outages.failed(error)
            return None
        self._outages.worked()
        return answer


def _left(window: int) -> int:
    """Seconds until the next window."""
    return window - int(time.time()) % window
