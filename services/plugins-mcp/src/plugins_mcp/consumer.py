"""The consumer of `events.plugins` and of its pools' streams: reads requests up to its concurrency, and takes over
abandoned ones.

It also removes the consumers of dead workers from the group.
"""

import asyncio
import logging
import math
import random
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.encryption import Cipher, open_request
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import Delivery, WorkerLedger
from plugins_contract.ledger.group import show_consumer, tidy_consumers
from plugins_contract.messages import (
    NewerEventError,
    RequestHeader,
    ToolCallRequested,
    UnsupportedEventError,
    decode_request,
)
from plugins_contract.signing import RequestKeys
from plugins_mcp.adoption import LEDGER_MARK, NOT_SIGNED, SIGNATURE, return_address
from plugins_mcp.leases import LeaseTimes
from plugins_mcp.ports import Observer, PoolFinder

log = logging.getLogger(__name__)

BLOCK_SECONDS = 2.0
SETTLE_SECONDS = 1.0
"""After an outage no new request is read for this long, so that every worker restores the ledgers of its running calls
first, if Redis lost them. More than the time in which a worker notices and renews (`LeaseTimes.renew_again`)."""
SETTLE_POLL_SECONDS = 0.25
TURN_SECONDS = 0.02
"""How long one stream is read first, and waited for, while there are fewer free slots than streams."""
OWN_PAGE = 100
SWEEP_PAGES = 100
"""The most pages of pending entries that one sweep reads."""


class Handler(Protocol):
    """Processes deliveries."""

    def serves(self, request: ToolCallRequested) -> bool:
        """Whether this worker has the call's server; other calls are returned to the group at once."""
        ...

    async def handle(self, delivery: Delivery) -> None:
        """Process one delivery, or leave it to other workers."""
        ...


class Adopter(Protocol):
    """Gives requests without a ledger their ledger."""

    async def adopt(self, entry: str, consumer: str, fields: dict[bytes, bytes], stream: str) -> Delivery | None:
        """The delivery of such an entry of `stream`; None when nothing more is to be done."""
        ...


_Entries = list[tuple[str, str, dict[bytes, bytes]]]
"""Streams, ids and fields."""


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
        member_of: Sequence[str],
        concurrency: int,
        steady_for: Callable[[], float],
        check_redis: Callable[[], Awaitable[None]],
        request_keys: RequestKeys | None = None,
        cipher: Cipher,
        times: LeaseTimes | None = None,
        settle_seconds: float = SETTLE_SECONDS,
        observer: Observer | None = None,
    ) -> None:
        """`steady_for` returns for how many seconds Redis has been steady, as of the last `check_redis`.

        `member_of` are the pools whose streams are read beside `events.plugins`.
        Abandoned requests are taken over after `times.grace` seconds of that, new ones are read after `settle_seconds`.
        """
        self._blocking = blocking
        self._redis = redis
        self._keys = keys
        self._ledger = ledger
        self._handler = handler
        self._adopter = adopter
        self._pools = pools
        self._name = name
        self._member_of = member_of
        self._streams = deque([keys.requests, *map(keys.requests_of, member_of)])
        self._concurrency = concurrency
        self._steady_for = steady_for
        self._check_redis = check_redis
        self._request_keys = request_keys or RequestKeys()
        self._cipher = cipher
        self._times = times or LeaseTimes()
        self._settle_seconds = settle_seconds
        self._observer = observer or Observer()
        self._served_since: float | None = -math.inf
        self._in_progress: dict[tuple[str, str], asyncio.Task[None]] = {}
        """By stream and entry."""
        self._freed = asyncio.Event()
        self._turn_ends = 0.0
        self._more = False
        """Whether a stream probably has more new entries: its last read returned as many as it asked for."""
        self._cursors = dict.fromkeys(self._streams, "0-0")
        self._sweep_at = 0.0
        self.reading = False
        """Whether the last read of the group succeeded."""

    async def run(self) -> None:
        """Consume until cancelled. Calls in progress then continue: see `drain`."""
        recover, self.reading = True, False
        pause = 0.0
        while True:
            free = await self._free_slots()
            try:
                if recover:
                    await self._recover()
                    recover = False
                elif asyncio.get_running_loop().time() >= self._sweep_at:
                    await self._sweep(free)
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
        await self._ledger.retire(self._name, self._member_of, lease_ms=self._times.lease_ms)

    async def _recover(self) -> None:
        """Create the group if it is missing, and process the entries that are already pending for this consumer.

        Those are entries whose delivery did not arrive, because the reply of Redis was lost.
        """
        for stream in [*self._streams]:
            await self._ensure_group(stream)
            after = "0"
            while entries := list(_entries(await self._read_own(stream, after))):
                await self._drop_deleted(stream, [entry for _, entry, fields in entries if not fields])
                for _, entry, fields in entries:
                    if fields and (stream, entry) not in self._in_progress:
                        await self._free_slots()
                        await self._take(stream, entry, fields, again="recovery")
                after = entries[-1][1]

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
        seconds = min(BLOCK_SECONDS, max(self._sweep_at - asyncio.get_running_loop().time(), 0.01))
        if self._more or free < len(self._streams):
            entries = await self._read_in_turn(free)
            self._more = len(entries) == free
        else:
            entries = []
        if not entries:
            entries = await self._read_all(free, seconds)
        for stream, entry, fields in entries:
            await self._take(stream, entry, fields)

    async def _read_in_turn(self, count: int) -> _Entries:
        """New entries of one stream: of the first one in turn that has some, which stays the first for TURN_SECONDS."""
        if asyncio.get_running_loop().time() >= self._turn_ends:
            self._begin_turn(self._streams[-1])
        for _ in range(len(self._streams)):
            if entries := await self._read_new([self._streams[0]], count):
                return entries
            self._streams.rotate()
        return []

    async def _read_all(self, free: int, seconds: float) -> _Entries:
        """Wait for new entries of all streams, or of one where there are fewer slots than streams."""
        if free < len(self._streams):
            return await self._read_new([self._streams[0]], free, min(TURN_SECONDS, seconds))
        count = free // len(self._streams)  # it takes as many of each
        entries = await self._read_new(self._streams, count, seconds)
        counts = Counter(stream for stream, _, _ in entries)
        if full := [stream for stream in self._streams if counts[stream] == count]:
            self._begin_turn(full[0])
            self._more = True
        return entries

    def _begin_turn(self, stream: str) -> None:
        self._streams.rotate(-self._streams.index(stream))
        self._turn_ends = asyncio.get_running_loop().time() + TURN_SECONDS

    async def _read_new(self, streams: Iterable[str], count: int, seconds: float | None = None) -> _Entries:
        block = None if seconds is None else int(seconds * 1000)
        new: Any = dict.fromkeys(streams, ">")
        answer = await self._blocking.xreadgroup(GROUP, self._name, new, count=count, block=block)
        return list(_entries(answer))

    async def _sweep(self, free: int) -> None:
        """Take over entries whose lease has expired, as many as there are free slots.

        The cursors are kept for the next sweep, so that every entry is reached when there are many. The next sweep
        follows at once only if an entry was for a worker like this one: calls that are returned to the group at once
        would be found again and again.
        """
        self._sweep_at = asyncio.get_running_loop().time() + self._times.sweep * random.uniform(0.75, 1.25)
        if not await self._may_take_over():
            return
        sweep_again = False
        for stream in [*self._streams]:
            for _ in range(SWEEP_PAGES):
                claimed, some_for_us = await self._claim_page(stream, free)
                free -= claimed
                sweep_again = sweep_again or some_for_us
                if free <= 0:
                    if sweep_again:
                        self._sweep_at = 0.0  # abandoned requests go before new ones, and there may be more
                    return
                if self._cursors[stream] == "0-0":
                    break

    async def _claim_page(self, stream: str, free: int) -> tuple[int, bool]:
        """Claim one page of expired entries. Redis checks ten entries for each that may be claimed.

        Returns how many were claimed, and whether one of them is for a worker like this one.
        """
        answer: Any = await self._redis.xautoclaim(
            stream,
            GROUP,
            self._name,
            min_idle_time=self._times.lease_ms,
            start_id=self._cursors[stream],
            count=free,
        )
        self._cursors[stream] = answer[0].decode()
        await self._drop_deleted(stream, answer[2])
        some_for_us = False
        for entry_id, fields in answer[1]:
            some_for_us |= await self._take(stream, entry_id.decode(), fields, again="takeover")
        return len(answer[1]), some_for_us

    async def _may_take_over(self) -> bool:
        """Whether expired leases can be trusted: Redis has been steady for long enough, and still is.

        A failed read of this consumer does not count: where connections break all the time, calls must still be taken
        over.
        """
        if self._steady_for() < self._times.grace:
            return False
        # The clock of Redis may have been set since the last check: then every lease seems to have expired.
        await self._check_redis()
        return self._steady_for() >= self._times.grace

    async def _ensure_group(self, stream: str) -> None:
        """Create the stream and the group if they are missing. The group starts at 0, so no earlier entry is lost."""
        try:
            await self._redis.xgroup_create(stream, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _read_own(self, stream: str, after: str) -> Any:
        return await self._redis.xreadgroup(GROUP, self._name, {stream: after}, count=OWN_PAGE)

    async def _drop_deleted(self, stream: str, deleted: Sequence[str | bytes]) -> None:
        """Acknowledge entries that were deleted from the stream. Their callers learn of it by AUDIT."""
        if deleted:
            log.warning("%d pending requests were deleted from the stream", len(deleted))
            await self._redis.xack(stream, GROUP, *deleted)

    async def _take(self, stream: str, entry: str, fields: dict[bytes, bytes], *, again: str = "") -> bool:
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
            ids = return_address(fields, self._keys).log_ids | {"code": "PERMISSION_DENIED"}
            log.warning("entry %s becomes a dead letter: %s", entry, NOT_SIGNED, extra=ids)
            self._observer.dead_letter("call")
            await self._bury(stream, entry, fields, NOT_SIGNED, ErrorCode.PERMISSION_DENIED)
            return True
        try:
            request = decode_request(event)
            if request.sealed:
                request = open_request(request, self._cipher)
        except UnsupportedEventError as error:
            header = error.header if isinstance(error, NewerEventError) else None
            if header and await self._leave_to_newer(stream, entry, header):
                return False
            ids = return_address(fields, self._keys).log_ids
            log.warning("entry %s becomes a dead letter: %s", entry, error, extra=ids)
            self._observer.dead_letter("call")
            await self._bury(stream, entry, fields, str(error))
            return True
        delivery = Delivery(request, entry, self._name, uuid.uuid4().hex, stream=stream)
        serves = self._handler.serves(request)
        if again and serves and await self._was_delivered(stream, entry):
            self._observer.redelivered(request, again)
        self._process(stream, entry, lambda: self._handler.handle(delivery))
        return serves

    async def _leave_to_newer(self, stream: str, entry: str, header: RequestHeader) -> bool:
        """Leave a request to workers of a newer release. False when its deadline has passed: none was there."""
        pool = await self._pools.find(header.server, header.event_version)
        return await self._ledger.leave(
            header.correlation_id, entry, self._name, stream, to=pool, lease_ms=self._times.lease_ms
        )

    async def _was_delivered(self, stream: str, entry: str) -> bool:
        """Whether an entry that was claimed had been delivered before, and not only been left to others."""
        rows: Any = await self._redis.xpending_range(stream, GROUP, entry, entry, 1)
        return bool(rows) and rows[0]["times_delivered"] > 1

    async def _adopt(self, stream: str, entry: str, fields: dict[bytes, bytes]) -> None:
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

    async def _bury(
        self,
        stream: str,
        entry: str,
        fields: dict[bytes, bytes],
        reason: str,
        code: ErrorCode = ErrorCode.UNKNOWN_ERROR,
    ) -> None:
        call = return_address(fields, self._keys)
        event = fields.get(b"event", b"")
        try:
            await self._ledger.bury(
                entry, reason, event, call.correlation_id, code=code, tool_call_id=call.tool_call_id, stream=stream
            )
        except ResponseError as error:
            if isinstance(error, RedisUnavailable):
                raise
            # It stays pending; other entries are processed.
            log.exception("entry %s cannot be made a dead letter", entry)

    async def _free_slots(self) -> int:
        while len(self._in_progress) >= self._concurrency:
            self._freed.clear()
            await self._freed.wait()
        return self._concurrency - len(self._in_progress)


def _no_group(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, ResponseError) and ("NOGROUP" in text or "UNBLOCKED" in text or "no longer exists" in text)


def _entries(answer: Any) -> Iterable[tuple[str, str, dict[bytes, bytes]]]:
    """The entries of a read, each with its stream. RESP3 answers with a dict of pages, RESP2 with a list of pairs."""
    if not answer:
        return
    streams: Any = answer.items() if isinstance(answer, dict) else answer  # pyright: ignore[reportUnknownVariableType]
    for stream, group in streams:
        pages = group if group and isinstance(group[0], list) else [group]
        for page in pages:
            for entry_id, fields in page:
                yield stream.decode(), entry_id.decode(), fields


@dataclass(frozen=True, slots=True)
class CleanupTimes:
    """In seconds."""

    silent: float = 30.0
    """A consumer without pending entries that was silent for this long is dead. It must not stay: a worker that never
    reports at the next server of Redis makes that server's earlier `once` calls unknown."""
    every: float = 8.0
    """How often each worker checks and is seen, with jitter, so that not all check at once."""


async def remove_dead_consumers(
    redis: Redis,
    keys: Keys,
    consumer: str,
    pools: Sequence[str] = (),
    *,
    steady_for: Callable[[], float],
    removed: Callable[[Sequence[str]], None],
    times: CleanupTimes | None = None,
) -> None:
    """Keep `consumer` visible in the group and in its `pools`, and remove the consumers of killed workers.

    Runs until cancelled. `removed` gets their names. Nothing is removed before Redis has been steady for so long that
    every running worker was seen again.
    """
    times = times or CleanupTimes()
    while True:
        await asyncio.sleep(times.every * random.uniform(0.5, 1.5))
        try:
            await show_consumer(redis, keys, consumer, pools)
            if steady_for() < 1.5 * times.every:
                continue
            gone = await tidy_consumers(redis, keys, consumer, pools, silent_ms=int(times.silent * 1000))
        except RedisError as error:
            log.debug("dead consumers cannot be removed now: %s", error)  # the consumer's own loop logs it loudly
            continue
        if gone:
            log.warning("removed consumers that were silent for %.0f s: %s", times.silent, ", ".join(gone))
            removed(gone)
