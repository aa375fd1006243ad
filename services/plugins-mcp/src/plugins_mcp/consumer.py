"""The consumer: takes from `events.plugins` what it has room for, and takes over what others have dropped."""

import asyncio
import logging
import math
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from plugins_contract.connections import describe_outage, is_outage
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import Delivery, WorkerLedger
from plugins_contract.messages import ToolCallRequested, UnsupportedEventError, decode_request
from plugins_mcp.adoption import MARK, return_address
from plugins_mcp.leases import LeaseTimes

log = logging.getLogger(__name__)

BLOCK_SECONDS = 2.0
SETTLE_SECONDS = 1.0
"""After an outage nothing new is taken for so long: whoever runs a call says so again first, should Redis have lost it.
More than the time in which every worker notices and renews (`LeaseTimes.renew_again`)."""
SETTLE_LOOK_SECONDS = 0.25
OWN_PAGE = 100
SWEEP_PAGES = 100
"""How many pages of pending entries one sweep goes through at most."""


class Handler(Protocol):
    """Sees deliveries through."""

    def serves(self, request: ToolCallRequested) -> bool:
        """Whether such a call can be run here; any other is left to other workers at once."""
        ...

    async def handle(self, delivery: Delivery) -> None:
        """See one delivery through, or leave it to others."""
        ...


class Adopter(Protocol):
    """Takes in requests that no ledger knows."""

    async def adopt(self, entry: str, consumer: str, fields: dict[bytes, bytes]) -> Delivery | None:
        """The delivery of such an entry; None when there is nothing more to be done about it."""
        ...


class Consumer:
    """One consumer of the group. It takes no more than it has free slots for: what waits, waits where others see it.

    One task takes, from wherever: two that each counted the free slots would take too much together.
    """

    def __init__(
        self,
        blocking: Redis,
        redis: Redis,
        keys: Keys,
        ledger: WorkerLedger,
        handler: Handler,
        adopter: Adopter,
        *,
        name: str,
        concurrency: int,
        steady_for: Callable[[], float],
        look: Callable[[], Awaitable[None]],
        times: LeaseTimes | None = None,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        """`steady_for` tells for how many seconds Redis has been steady, as far as is known since the last `look`.

        Nothing is taken over before `times.grace`, and nothing new is taken before `settle_seconds`.
        """
        self._blocking = blocking
        self._redis = redis
        self._keys = keys
        self._ledger = ledger
        self._handler = handler
        self._adopter = adopter
        self._name = name
        self._concurrency = concurrency
        self._steady_for = steady_for
        self._look = look
        self._times = times or LeaseTimes()
        self._settle_seconds = settle_seconds
        self._served_since: float | None = -math.inf
        self._in_hand: dict[str, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()
        self._cursor = "0-0"
        self._sweep_at = 0.0
        self.reading = False
        """Whether the group was there and Redis answered when it was last read."""

    async def run(self) -> None:
        """Consume until cancelled; what is in hand then goes on: see `drain`."""
        recover = True
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
                self._note_served()
            except Exception as error:
                self._served_since = None
                self.reading = False
                recover = True
                if _no_group(error):
                    log.warning("the group is gone (%s): making it anew", error)
                elif is_outage(error):
                    log.warning("Redis does not answer: %s", describe_outage(error))
                else:
                    log.exception("requests cannot be read")
                pause = min(max(pause * 2, 0.1), 2.0)
                await asyncio.sleep(pause)

    async def drain(self, seconds: float) -> None:
        """Wait for what is in hand; what has not ended by then is cut off, and left to other workers."""
        tasks = list(self._in_hand.values())
        if not tasks:
            return
        log.info("%d calls are still running; waiting up to %.0f s", len(tasks), seconds)
        _, rest = await asyncio.wait(tasks, timeout=seconds)
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)

    async def retire(self) -> None:
        """Leave the group. What is still pending under this name is made free for others. Raises what redis raises."""
        await self._ledger.retire(self._name, lease_ms=self._times.lease_ms)

    async def _recover(self) -> None:
        """Make the group if it is missing, and take what is ours already.

        Entries whose delivery we never saw, because its reply was lost, stand in our own pending list.
        """
        await self._ensure_group()
        after = "0"
        while entries := list(_entries(await self._read_own(after))):
            await self._let_go([entry for entry, fields in entries if not fields])
            for entry, fields in entries:
                if fields and entry not in self._in_hand:
                    await self._free_slots()
                    await self._take(entry, fields)
            after = entries[-1][0]

    def _note_served(self) -> None:
        # While the watch sees no Redis, or one that takes no writes, we only wait: that is no reading.
        self.reading = self._steady_for() > 0
        if self._served_since is None:
            self._served_since = asyncio.get_running_loop().time()

    def _settled_for(self) -> float:
        """For how many seconds Redis has been steady, as the watch sees it and as we were served ourselves."""
        if self._served_since is None:
            return 0.0
        return min(self._steady_for(), asyncio.get_running_loop().time() - self._served_since)

    async def _read(self, free: int) -> None:
        if (left := self._settle_seconds - self._settled_for()) > 0:
            await asyncio.sleep(min(left, SETTLE_LOOK_SECONDS))
            return
        until_sweep = max(self._sweep_at - asyncio.get_running_loop().time(), 0.01)
        answer: Any = await self._blocking.xreadgroup(
            GROUP,
            self._name,
            {self._keys.requests: ">"},
            count=free,
            block=int(min(BLOCK_SECONDS, until_sweep) * 1000),
        )
        for entry, fields in _entries(answer):
            await self._take(entry, fields)

    async def _sweep(self, free: int) -> None:
        """Take over entries whose lease has run out: as many as there is room for, from all that are pending.

        The cursor is kept, so that where there are more than can be looked at now none is passed over. Calls that go
        back to other workers at once are no reason to hurry: they would be found again and again.
        """
        self._sweep_at = asyncio.get_running_loop().time() + self._times.sweep * random.uniform(0.75, 1.25)
        if not await self._calm():
            return
        hurry = False
        for _ in range(SWEEP_PAGES):
            claimed, some_are_ours = await self._sweep_page(free)
            free -= claimed
            hurry = hurry or some_are_ours
            if free <= 0:
                if hurry:
                    self._sweep_at = 0.0  # there may be more: what was dropped goes before what is new
                return
            if self._cursor == "0-0":
                return

    async def _sweep_page(self, free: int) -> tuple[int, bool]:
        """One page of the sweep: Redis looks at ten entries for each that may be claimed.

        Returns how many were, and whether one of them is for a worker like this.
        """
        answer: Any = await self._redis.xautoclaim(
            self._keys.requests,
            GROUP,
            self._name,
            min_idle_time=self._times.lease_ms,
            start_id=self._cursor,
            count=free,
        )
        self._cursor = answer[0].decode()
        await self._let_go(answer[2])
        some_are_ours = False
        for entry_id, fields in answer[1]:
            if await self._take(entry_id.decode(), fields):
                log.warning("taking over entry %s: its lease has run out", entry_id.decode())
                some_are_ours = True
        return len(answer[1]), some_are_ours

    async def _calm(self) -> bool:
        """Whether a lease that seems to have run out has: Redis has been steady for long enough, and is so now.

        A read of ours that failed says nothing here: where connections break all the time, somebody must take over.
        """
        if self._steady_for() < self._times.grace:
            return False
        # Its clock may have been set since it was last looked at: then every lease seems to have run out.
        await self._look()
        return self._steady_for() >= self._times.grace

    async def _ensure_group(self) -> None:
        """Make the stream and the group when they are missing; at 0, so that what came before is not lost."""
        try:
            await self._redis.xgroup_create(self._keys.requests, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _read_own(self, after: str) -> Any:
        return await self._redis.xreadgroup(GROUP, self._name, {self._keys.requests: after}, count=OWN_PAGE)

    async def _let_go(self, deleted: Sequence[str | bytes]) -> None:
        """Entries that were deleted under the group: nothing can be done with them, and their callers find out."""
        if deleted:
            log.warning("%d requests were deleted while they were in work", len(deleted))
            await self._redis.xack(self._keys.requests, GROUP, *deleted)

    async def _take(self, entry: str, fields: dict[bytes, bytes]) -> bool:
        """Take an entry in hand. Returns whether it is certainly for a worker like this."""
        # Ours, and delivered once more: the group was made anew under a running call.
        if entry in self._in_hand:
            return True
        if MARK not in fields:
            self._see_through(entry, lambda: self._adopt(entry, fields))
            return False
        try:
            request = decode_request(fields.get(b"event", b""))
        except UnsupportedEventError as error:
            log.warning("entry %s goes to the dead letters: %s", entry, error)
            await self._bury(entry, fields, str(error))
            return True
        delivery = Delivery(request, entry, self._name, uuid.uuid4().hex)
        self._see_through(entry, lambda: self._handler.handle(delivery))
        return self._handler.serves(request)

    async def _adopt(self, entry: str, fields: dict[bytes, bytes]) -> None:
        if delivery := await self._adopter.adopt(entry, self._name, fields):
            await self._handler.handle(delivery)

    def _see_through(self, entry: str, work: Callable[[], Awaitable[None]]) -> None:
        async def see() -> None:
            try:
                await work()
            except Exception:
                log.exception("entry %s failed here and is left to its lease", entry)
            finally:
                del self._in_hand[entry]
                self._freed.set()

        self._in_hand[entry] = asyncio.create_task(see(), name=f"entry {entry}")

    async def _bury(self, entry: str, fields: dict[bytes, bytes], reason: str) -> None:
        call = return_address(fields, self._keys)
        event = fields.get(b"event", b"")
        try:
            await self._ledger.bury(entry, reason, event, call.correlation_id, tool_call_id=call.tool_call_id)
        except Exception as error:
            if is_outage(error):
                raise
            log.exception("entry %s cannot even be buried", entry)  # it stays pending, and the others are taken

    async def _free_slots(self) -> int:
        while len(self._in_hand) >= self._concurrency:
            self._freed.clear()
            await self._freed.wait()
        return self._concurrency - len(self._in_hand)


def _no_group(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, ResponseError) and ("NOGROUP" in text or "UNBLOCKED" in text or "no longer exists" in text)


def _entries(answer: Any) -> Iterable[tuple[str, dict[bytes, bytes]]]:
    """The entries of a read of one stream: RESP3 answers with a dict of pages, RESP2 with a list of pairs."""
    if not answer:
        return
    streams: Any = answer.items() if isinstance(answer, dict) else answer  # pyright: ignore[reportUnknownVariableType]
    for _, group in streams:
        pages = group if group and isinstance(group[0], list) else [group]
        for page in pages:
            for entry_id, fields in page:
                yield entry_id.decode(), fields
