"""The consumer of `events.plugins` and of its pools' streams: reads requests up to its concurrency, and takes over
abandoned ones (`takeover`).
"""

import asyncio
import logging
import math
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.encryption import Cipher, open_request
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import Delivery, WorkerLedger
from plugins_contract.messages import UnsupportedEventError, decode_request
from plugins_contract.signing import RequestKeys
from plugins_mcp.adoption import LEDGER_MARK, SIGNATURE
from plugins_mcp.leases import LeaseTimes
from plugins_mcp.ports import Adopter, Handler, Observer, PoolFinder
from plugins_mcp.takeover import Entries, Fields, Takeover
from plugins_mcp.unusable import UnusableEntries

log = logging.getLogger(__name__)

BLOCK_SECONDS = 2.0
SETTLE_SECONDS = 1.0
"""After an outage no new request is read for this long, so that every worker restores the ledgers of its running calls
first, if Redis lost them. More than the time in which a worker notices and renews (`LeaseTimes.renew_again`)."""
SETTLE_POLL_SECONDS = 0.25
OWN_PAGE = 100
TURN_SECONDS = 0.02
"""How long one stream is read first, and waited for, while there are fewer free slots than streams."""


class Consumer:
    """One consumer of the group. It takes only as many requests as it has free slots; the rest stay for other workers.

    One task both reads and takes over: two tasks that each counted the free slots would take too many together.
    """

    def __init__(
        self,
        blocking: Redis,
        redis: Redis,
        keys: Keys,
        ledger: WorkerLedger,
        handler: Handler,
        adopter: Adopter,
        pools: PoolFinder,
        *,
        name: str,
        member_of: Callable[[], Sequence[str]],
        concurrency: int,
        steady_for: Callable[[], float],
        check_redis: Callable[[], Awaitable[None]],
        request_keys: RequestKeys | None = None,
        cipher: Cipher,
        times: LeaseTimes | None = None,
        settle_seconds: float = SETTLE_SECONDS,
        turn_seconds: float = TURN_SECONDS,
        observer: Observer | None = None,
    ) -> None:
        """`steady_for` returns for how many seconds Redis has been steady, as of the last `check_redis`: abandoned
        requests are taken over after `times.grace` seconds of that, new ones are read after `settle_seconds`.
        `member_of` returns the pools whose streams are read beside `events.plugins`, now."""
        self._blocking = blocking
        self._redis = redis
        self._ledger = ledger
        self._handler = handler
        self._adopter = adopter
        self._name = name
        self._keys = keys
        self._member_of = member_of
        self._pools: Sequence[str] = ()
        self._streams = deque([keys.requests])
        self._concurrency = concurrency
        self._steady_for = steady_for
        self._request_keys = request_keys or RequestKeys()
        self._cipher = cipher
        self._times = times or LeaseTimes()
        self._observer = observer or Observer()
        self._settle_seconds = settle_seconds
        self._turn_seconds = turn_seconds
        self._takeover = Takeover(
            redis,
            self._streams,
            name,
            self._times,
            self._take_again,
            self._read_own,
            steady_for=steady_for,
            check_redis=check_redis,
        )
        self._unusable = UnusableEntries(
            ledger, keys, pools, self._observer, consumer=name, lease_ms=self._times.lease_ms
        )
        self._served_since: float | None = -math.inf
        self._in_progress: dict[tuple[str, str], asyncio.Task[None]] = {}
        """By stream and entry."""
        self._freed = asyncio.Event()
        self._turn_ends = 0.0
        self._more = False
        """Whether a stream probably has more new entries: its last read returned as many as it asked for."""
        self.reading = False
        """Whether the last read of the group succeeded."""

    async def run(self) -> None:
        """Consume until cancelled. Calls in progress then continue: see `drain`."""
        recover, self.reading = True, False
        pause = 0.0
        while True:
            free = await self._free_slots()
            recover = self._changed_pools() or recover
            try:
                if recover:
                    await self._takeover.recover()
                    recover = False
                elif asyncio.get_running_loop().time() >= self._takeover.sweep_at:
                    await self._takeover.sweep(free)
                    pause = 0.0
                else:
                    await self._read(free)
                    pause = 0.0
                self._mark_served()
            except RedisError as error:
                self._served_since = None
                self.reading = False
                recover = True
                if _no_group(error):
                    log.warning("the consumer group is missing (%s): creating it", error)
                elif isinstance(error, RedisUnavailable):
                    log.warning("Redis is not available: %s", error)
                else:
                    log.exception("internal error while reading requests")
                pause = min(max(pause * 2, 0.1), 2.0)
                await asyncio.sleep(pause)

    def _changed_pools(self) -> bool:
        """Read the streams of the pools that this worker is in now. Whether they are others than before."""
        if self._pools == (now := tuple(self._member_of())):
            return False
        self._pools, own = now, self._keys.requests
        self._streams.clear()
        self._streams.extend([own, *map(self._keys.requests_of, now)])
        return True

    async def drain(self, seconds: float) -> None:
        """Wait for the calls in progress; after `seconds` the rest are cancelled and left to other workers."""
        tasks = list(self._in_progress.values())
        if not tasks:
            return
        log.info("shutting down: waiting up to %.0f s for %d running calls", seconds, len(tasks))
        _, rest = await asyncio.wait(tasks, timeout=seconds)
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)

    async def retire(self) -> None:
        """Leave the group. Entries still pending here become free for others. Raises `RedisUnavailable`."""
        await self._ledger.retire(self._name, self._pools, lease_ms=self._times.lease_ms)

    def _mark_served(self) -> None:
        # Without Redis, or while it accepts no writes, this consumer only waits, which does not count as reading.
        self.reading = self._steady_for() > 0
        if self._served_since is None:
            self._served_since = asyncio.get_running_loop().time()

    def _settled_for(self) -> float:
        """For how many seconds Redis has been steady, as the watch sees it and as it answered this consumer."""
        if self._served_since is None:
            return 0.0
        return min(self._steady_for(), asyncio.get_running_loop().time() - self._served_since)

    async def _read(self, free: int) -> None:
        if (left := self._settle_seconds - self._settled_for()) > 0:
            await asyncio.sleep(min(left, SETTLE_POLL_SECONDS))
            return
        seconds = min(BLOCK_SECONDS, max(self._takeover.sweep_at - asyncio.get_running_loop().time(), 0.01))
        entries: Entries = ()
        if self._more or free < len(self._streams):
            entries = await self._read_in_turn(free)
            self._more = len(entries) == free
        if not entries:
            entries = await self._read_all(free, seconds)
        for stream, entry, fields in entries:
            await self._take(stream, entry, fields)

    async def _read_in_turn(self, count: int) -> Entries:
        """New entries of one stream: of the first one in turn that has some, which stays the first for TURN_SECONDS."""
        if asyncio.get_running_loop().time() >= self._turn_ends:
            self._begin_turn(self._streams[-1])
        for _ in range(len(self._streams)):
            if entries := await self._read_new([self._streams[0]], count):
                return entries
            self._streams.rotate()
        return []

    async def _read_all(self, free: int, seconds: float) -> Entries:
        """Wait for new entries of all streams, or of one where there are fewer slots than streams."""
        if free < len(self._streams):
            return await self._read_new([self._streams[0]], free, min(self._turn_seconds, seconds))
        count = free // len(self._streams)  # it takes as many of each
        entries = await self._read_new(self._streams, count, seconds)
        counts = Counter(stream for stream, _, _ in entries)
        if full := [stream for stream in self._streams if counts[stream] == count]:
            self._begin_turn(full[0])
            self._more = True
        return entries

    def _begin_turn(self, stream: str) -> None:
        self._streams.rotate(-self._streams.index(stream))
        self._turn_ends = asyncio.get_running_loop().time() + self._turn_seconds

    async def _read_new(self, streams: Iterable[str], count: int, seconds: float | None = None) -> Entries:
        block = None if seconds is None else int(seconds * 1000)
        new: Any = dict.fromkeys(streams, ">")
        answer = await self._blocking.xreadgroup(GROUP, self._name, new, count=count, block=block)
        return list(_entries(answer))

    async def _read_own(self, stream: str, after: str) -> Entries:
        return list(_entries(await self._redis.xreadgroup(GROUP, self._name, {stream: after}, count=OWN_PAGE)))

    async def _take_again(self, stream: str, entry: str, fields: Fields, why: str) -> bool:
        if (stream, entry) in self._in_progress:
            return True
        await self._free_slots()
        return await self._take(stream, entry, fields, again=why)

    async def _take(self, stream: str, entry: str, fields: Fields, *, again: str = "") -> bool:
        """Start processing an entry. Returns whether it is certainly for a worker like this one.

        `again` says why it is delivered again: see `Observer.redelivered`.
        """
        # Delivered again while its call runs here, because the group was created again.
        if (stream, entry) in self._in_progress:
            return True
        if LEDGER_MARK not in fields:
            self._process(stream, entry, lambda: self._adopt(stream, entry, fields))
            return False
        event = fields.get(b"event", b"")
        if not self._request_keys.accept(event, fields.get(SIGNATURE, b""), has_ledger=True):
            await self._unusable.not_signed(stream, entry, fields)
            return True
        try:
            request = decode_request(event)
            if request.sealed:
                request = open_request(request, self._cipher)
        except UnsupportedEventError as error:
            return await self._unusable.not_readable(stream, entry, fields, error)
        delivery = Delivery(request, entry, self._name, uuid.uuid4().hex, stream=stream)
        serves = self._handler.serves(request)
        if again and serves and await self._takeover.was_delivered(stream, entry):
            self._observer.redelivered(request, again)
        self._process(stream, entry, lambda: self._handler.handle(delivery))
        return serves

    async def _adopt(self, stream: str, entry: str, fields: Fields) -> None:
        if delivery := await self._adopter.adopt(entry, self._name, fields, stream):
            await self._handler.handle(delivery)

    def _process(self, stream: str, entry: str, work: Callable[[], Awaitable[None]]) -> None:
        async def process() -> None:
            try:
                await work()
            except Exception:
                log.exception("internal error in entry %s: it is taken over when its lease expires", entry)
            finally:
                del self._in_progress[stream, entry]
                self._freed.set()

        self._in_progress[stream, entry] = asyncio.create_task(process(), name=f"entry {entry}")

    async def _free_slots(self) -> int:
        while len(self._in_progress) >= self._concurrency:
            self._freed.clear()
            await self._freed.wait()
        return self._concurrency - len(self._in_progress)


def _no_group(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, ResponseError) and ("NOGROUP" in text or "UNBLOCKED" in text or "no longer exists" in text)


def _entries(answer: Any) -> Iterable[tuple[str, str, Fields]]:
    """The entries of a read, each with its stream. RESP3 answers with a dict of pages, RESP2 with a list of pairs."""
    if not answer:
        return
    streams: Any = answer.items() if isinstance(answer, dict) else answer  # pyright: ignore[reportUnknownVariableType]
    for stream, group in streams:
        pages = group if group and isinstance(group[0], list) else [group]
        for page in pages:
            for entry_id, fields in page:
                yield stream.decode(), entry_id.decode(), fields
