"""The engine's mailbox: one reader for the replies to all its calls, however many wait.

Each call has a durable response channel; the mailbox is only the doorbell, with small payloads inside. A ring that was
lost is made good by a sweep over the ledger, so a reply is late by seconds at most, never lost. The same sweep notices
calls of which Redis has lost something.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from redis.asyncio import Redis

from dialog_engine.chat.outbox import Outbox
from dialog_engine.streams.auditor import Auditor
from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys
from plugins_contract.ledger import AUDIT_BATCH, EngineLedger, decode_reply
from plugins_contract.ledger.replies import Loss
from plugins_contract.outcomes import CallFinished, CallReply

log = logging.getLogger(__name__)

BLOCK_SECONDS = 2.5
SWEEP_SECONDS = 2.5
SUSPECT_SECONDS = 1.0
"""How soon it is swept again while calls look lost."""
QUIET_SECONDS = 1.5
"""A call that was not heard of for this long is looked up: with the sweep, a lost ring costs less than five seconds."""
BATCH = 256

Deliver = Callable[[str, CallReply], None]
"""Takes a reply to the call with this correlation id. It must not wait."""
OnLost = Callable[[str, Loss], None]
"""Told that Redis has lost something of this call, again and again while it is so. It must not wait."""


@dataclass(frozen=True, slots=True, eq=False)
class _Subscriber:
    deliver: Deliver
    on_lost: OnLost


class Mailbox:
    """Reads the mailbox of one engine. `blocking` has a connection of its own; `redis` is shared."""

    def __init__(self, blocking: Redis, redis: Redis, keys: Keys, engine_id: str, outbox: Outbox) -> None:
        self._blocking = blocking
        self._redis = redis
        self.auditor = Auditor(EngineLedger(redis, keys), outbox)
        self.unpublished = self.auditor.unpublished
        self.key = keys.mailbox(engine_id)
        self._waiting: dict[str, _Subscriber] = {}
        self._heard: dict[str, float] = {}
        self._last = ""
        self.on_ring: Callable[[str], None] = lambda _: None
        """Told of each call that rings, waited for or not: it has begun, or ended. It must not wait."""

    def __len__(self) -> int:
        return len(self._waiting)

    @contextlib.contextmanager
    def subscribed(
        self, correlation_ids: Iterable[str], deliver: Deliver, on_lost: OnLost = lambda _, __: None
    ) -> Generator[None]:
        """Deliver replies to these calls while the context is open. What came before is found by the sweep."""
        ids = list(correlation_ids)
        subscriber = _Subscriber(deliver, on_lost)
        self._waiting.update(dict.fromkeys(ids, subscriber))
        self._heard.update(dict.fromkeys(ids, asyncio.get_running_loop().time()))
        try:
            yield
        finally:
            for correlation_id in ids:
                # A later subscription may have taken the place of this one.
                if self._waiting.get(correlation_id) is subscriber:
                    self._forget(correlation_id)

    async def run(self) -> None:
        """Read and sweep, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(), name="mailbox reader")
            tasks.create_task(self._sweep(), name="mailbox sweep")

    async def check(self, correlation_ids: Iterable[str]) -> None:
        """Look these calls up in the ledger now: deliver what is finished, tell what is lost."""
        ids = [correlation_id for correlation_id in correlation_ids if correlation_id in self._waiting]
        for at in range(0, len(ids), AUDIT_BATCH):
            some = ids[at : at + AUDIT_BATCH]
            for correlation_id, found in await self.auditor.look(some):
                if not isinstance(found, Loss):
                    self._deliver(correlation_id, found)
                elif subscriber := self._waiting.get(correlation_id):
                    subscriber.on_lost(correlation_id, found)
            for correlation_id in some:
                if correlation_id not in self._waiting:
                    self.auditor.forget(correlation_id)  # who waited for it left while it was looked up

    async def _read(self) -> None:
        pause = 0.0
        while True:
            try:
                await self._read_some()
                pause = 0.0
            except Exception as error:
                if not is_outage(error):
                    log.exception("the mailbox cannot be read")
                pause = min(max(pause * 2, 0.1), 2.0)
                await asyncio.sleep(pause)
                # A mailbox that was lost and made anew counts from wherever its clock stands: ask for its newest id.
                self._last = ""

    async def _read_some(self) -> None:
        if not self._last:
            newest: Any = await self._redis.xrevrange(self.key, count=1)
            self._last = newest[0][0].decode() if newest else "0-0"
            await self.check(list(self._waiting))
        answer: Any = await self._blocking.xread({self.key: self._last}, count=BATCH, block=int(BLOCK_SECONDS * 1000))
        for entries in _streams(answer):
            for entry_id, fields in entries:
                self._last = entry_id.decode()
                await self._ring(fields[b"id"].decode(), fields[b"reply"])

    async def _ring(self, correlation_id: str, data: bytes) -> None:
        self.on_ring(correlation_id)
        if correlation_id not in self._waiting:
            return
        if data:
            self._deliver(correlation_id, data)
        else:
            await self.check([correlation_id])

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SUSPECT_SECONDS if self.auditor.suspects else SWEEP_SECONDS)
            quiet = [i for i, heard in self._heard.items() if heard < loop.time() - QUIET_SECONDS]
            try:
                await self.check(quiet)
            except Exception as error:
                if not is_outage(error):
                    log.exception("the ledger cannot be swept")

    def _deliver(self, correlation_id: str, data: bytes) -> None:
        subscriber = self._waiting.get(correlation_id)
        if subscriber is None:
            return
        self._heard[correlation_id] = asyncio.get_running_loop().time()
        try:
            reply = decode_reply(data)
        except msgspec.DecodeError:
            log.exception("reply to call %s cannot be read", correlation_id)
            return
        subscriber.deliver(correlation_id, reply)
        if isinstance(reply, CallFinished):
            self._forget(correlation_id)

    def _forget(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)
        self._heard.pop(correlation_id, None)
        self.auditor.forget(correlation_id)


def _streams(answer: Any) -> list[Any]:
    """The entries per stream of an XREAD answer, which is a dict on RESP3 and a list of pairs on RESP2."""
    if not answer:
        return []
    if isinstance(answer, dict):
        values: Any = answer.values()  # pyright: ignore[reportUnknownVariableType]
        return [entries for groups in values for entries in groups]
    return [entries for _, entries in answer]
