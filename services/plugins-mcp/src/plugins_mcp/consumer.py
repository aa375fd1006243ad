"""The consumer: takes from `events.plugins` what it has room for, and takes over what others have dropped."""

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import Iterable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from plugins_contract.connections import is_outage
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import Delivery, WorkerLedger
from plugins_contract.messages import UnsupportedEventError, decode_request
from plugins_mcp.handler import CallHandler
from plugins_mcp.leases import LEASE_SECONDS

log = logging.getLogger(__name__)

BLOCK_SECONDS = 2.0
SWEEP_SECONDS = 2.0


class Consumer:
    """One consumer of the group. It reads no more than it has free slots for: what waits, waits where others see it."""

    def __init__(
        self,
        blocking: Redis,
        redis: Redis,
        keys: Keys,
        ledger: WorkerLedger,
        handler: CallHandler,
        *,
        name: str,
        concurrency: int,
    ) -> None:
        self._blocking = blocking
        self._redis = redis
        self._keys = keys
        self._ledger = ledger
        self._handler = handler
        self._name = name
        self._concurrency = concurrency
        self._in_hand: dict[str, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()
        self._no_claims_before = 0.0
        self.reading = False
        """Whether the group was there and Redis answered when it was last read."""

    async def run(self) -> None:
        """Consume until cancelled; what is in hand then goes on: see `drain`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(), name="consumer")
            tasks.create_task(self._sweep(), name="consumer sweep")

    async def drain(self, seconds: float) -> None:
        """Wait for what is in hand; what has not ended by then is left to other workers."""
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
        """Leave the group, if nothing is pending under this name. Raises what redis raises."""
        await self._ledger.retire(self._name)

    async def _read(self) -> None:
        # Entries whose delivery we never saw, because its reply was lost, stand in our own pending list.
        recover = True
        pause = 0.0
        while True:
            free = await self._free_slots()
            try:
                if recover:
                    await self._ensure_group()
                    await self._take_own_pending()
                    recover = False
                answer: Any = await self._blocking.xreadgroup(
                    GROUP, self._name, {self._keys.requests: ">"}, count=free, block=int(BLOCK_SECONDS * 1000)
                )
                self.reading = True
                pause = 0.0
            except Exception as error:
                self.reading = False
                recover = True
                if _no_group(error):
                    log.warning("the group is gone (%s): making it anew", error)
                elif is_outage(error):
                    # Idle times grow while Redis is away: give every living worker time to renew before claiming.
                    self._no_claims_before = asyncio.get_running_loop().time() + LEASE_SECONDS
                    log.warning("Redis does not answer: %s", type(error).__name__)
                else:
                    log.exception("requests cannot be read")
                pause = min(max(pause * 2, 0.1), 2.0)
                await asyncio.sleep(pause)
                continue
            for entry, fields in _entries(answer):
                await self._take(entry, fields)

    async def _sweep(self) -> None:
        """Take over entries whose lease has run out. The cursor goes round, so that none is passed over."""
        cursor = "0-0"
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS * random.uniform(0.75, 1.25))
            free = self._concurrency - len(self._in_hand)
            if free <= 0 or loop.time() < self._no_claims_before:
                continue
            try:
                answer: Any = await self._redis.xautoclaim(
                    self._keys.requests,
                    GROUP,
                    self._name,
                    min_idle_time=int(LEASE_SECONDS * 1000),
                    start_id=cursor,
                    count=free,
                )
            except Exception as error:
                if not is_outage(error) and not _no_group(error):
                    log.exception("dropped requests cannot be taken over")
                continue
            cursor = answer[0].decode()
            for entry_id, fields in answer[1]:
                if fields:
                    log.warning("taking over entry %s: its lease has run out", entry_id.decode())
                    await self._take(entry_id.decode(), fields)

    async def _ensure_group(self) -> None:
        """Make the stream and the group when they are missing; at 0, so that what came before is not lost."""
        try:
            await self._redis.xgroup_create(self._keys.requests, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _take_own_pending(self) -> None:
        answer: Any = await self._redis.xreadgroup(GROUP, self._name, {self._keys.requests: "0"})
        for entry, fields in _entries(answer):
            if fields:
                await self._take(entry, fields)

    async def _take(self, entry: str, fields: dict[bytes, bytes]) -> None:
        if entry in self._in_hand:
            return
        event = fields.get(b"event", b"")
        try:
            request = decode_request(event)
        except UnsupportedEventError as error:
            log.warning("entry %s goes to the dead letters: %s", entry, error)
            await self._bury(entry, fields, str(error))
            return
        delivery = Delivery(request, entry, self._name, uuid.uuid4().hex)
        task = asyncio.create_task(self._handle(delivery), name=f"call {request.correlation_id}")
        self._in_hand[entry] = task

    async def _handle(self, delivery: Delivery) -> None:
        try:
            await self._handler.handle(delivery)
        except Exception:
            log.exception("call %s failed here and is left to its lease", delivery.request.correlation_id)
        finally:
            del self._in_hand[delivery.entry]
            self._freed.set()

    async def _bury(self, entry: str, fields: dict[bytes, bytes], reason: str) -> None:
        correlation_id = fields.get(b"correlationId", b"").decode("utf-8", "replace")
        with contextlib.suppress(ConnectionError, TimeoutError, OSError):
            await self._ledger.bury(entry, reason, fields.get(b"event", b""), correlation_id)

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
