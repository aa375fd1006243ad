"""Finds the entries that a consumer takes without having read them: abandoned ones, and those of a lost reply."""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeAlias

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from plugins_contract.keys import GROUP
from plugins_mcp.leases import LeaseTimes

log = logging.getLogger(__name__)

SWEEP_PAGES = 100
"""The most pages of pending entries that one sweep reads."""

Fields: TypeAlias = dict[bytes, bytes]
Entries: TypeAlias = Sequence[tuple[str, str, Fields]]
"""Streams, ids and fields."""
Take: TypeAlias = Callable[[str, str, Fields, str], Awaitable[bool]]
"""Takes an entry of a stream with its fields, once there is a free slot; the last argument is why it is delivered
again, as in `Observer.redelivered`. Returns whether it is certainly for a worker like this one."""


class Takeover:
    """The recovery and the takeovers of one consumer, which calls its methods in turn."""

    def __init__(
        self,
        redis: Redis,
        streams: Collection[str],
        name: str,
        times: LeaseTimes,
        take: Take,
        read_own: Callable[[str, str], Awaitable[Entries]],
        *,
        steady_for: Callable[[], float],
        check_redis: Callable[[], Awaitable[None]],
    ) -> None:
        """`streams` begin with the one whose turn it is. `read_own` reads the pending entries of the consumer in one of
        them behind an entry; those that were deleted have no fields.

        `steady_for` returns for how many seconds Redis has been steady, as of the last `check_redis`.
        """
        self._redis = redis
        self._streams = streams
        self._name = name
        self._times = times
        self._take = take
        self._read_own = read_own
        self._steady_for = steady_for
        self._check_redis = check_redis
        self._cursors = defaultdict[str, str](lambda: "0-0")
        """By stream."""
        self.sweep_at = 0.0
        """When the next sweep is due, on the clock of the event loop."""

    async def recover(self) -> None:
        """Create the group if it is missing, and process the entries that are already pending for this consumer.

        Those are entries whose delivery did not arrive, because the reply of Redis was lost.
        """
        for stream in [*self._streams]:
            await self._ensure_group(stream)
            after = "0"
            while entries := await self._read_own(stream, after):
                await self._drop_deleted(stream, [entry for _, entry, fields in entries if not fields])
                for _, entry, fields in entries:
                    if fields:
                        await self._take(stream, entry, fields, "recovery")
                after = entries[-1][1]

    async def sweep(self, free: int) -> None:
        """Take over entries whose lease has expired, as many as there are free slots.

        The cursors are kept for the next sweep, so that every entry is reached when there are many. The next sweep
        follows at once only if an entry was for a worker like this one: calls that are returned to the group at once
        would be found again and again.
        """
        self.sweep_at = asyncio.get_running_loop().time() + self._times.sweep * random.uniform(0.75, 1.25)
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
                        self.sweep_at = 0.0  # abandoned requests go before new ones, and there may be more
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
            some_for_us |= await self._take(stream, entry_id.decode(), fields, "takeover")
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

    async def was_delivered(self, stream: str, entry: str) -> bool:
        """Whether an entry that was claimed had been delivered before, and not only been left to others."""
        rows: Any = await self._redis.xpending_range(stream, GROUP, entry, entry, 1)
        return bool(rows) and rows[0]["times_delivered"] > 1

    async def _ensure_group(self, stream: str) -> None:
        """Create the stream and the group if they are missing. The group starts at 0, so no earlier entry is lost."""
        try:
            await self._redis.xgroup_create(stream, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _drop_deleted(self, stream: str, deleted: Sequence[str | bytes]) -> None:
        """Acknowledge entries that were deleted from the stream. Their callers learn of it by AUDIT."""
        if deleted:
            log.warning("%d pending requests were deleted from the stream", len(deleted))
            await self._redis.xack(stream, GROUP, *deleted)
