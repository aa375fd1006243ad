"""The engine's mailbox: one reader for the replies to all its calls, however many wait.

Each call has a durable response channel, the home of its reply; the mailbox is only the doorbell, with small payloads
inside. A large reply, and one whose ring was lost, is read from the channel: the ledger knows which calls have one. So
a reply is late by seconds at most, never lost. The same sweep notices calls of which Redis has lost something.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis

from dialog_engine.calls.losses import LossDetector
from dialog_engine.chat.outbox import Outbox
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.streams.subscriptions import Subscriptions
from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys
from plugins_contract.ledger import AUDIT_BATCH, EngineLedger, decode_reply
from plugins_contract.ledger.replies import Loss

log = logging.getLogger(__name__)

BLOCK_SECONDS = 2.5
SWEEP_SECONDS = 2.5
SUSPECT_SECONDS = 1.0
"""How soon it is swept again while calls look lost."""
QUIET_SECONDS = 1.5
"""A call that was not heard of for this long is looked up: with the sweep, a lost ring costs less than five seconds."""
BATCH = 256


class Mailbox:
    """Reads the mailbox of one engine. `blocking` has a connection of its own; `redis` is shared."""

    def __init__(
        self,
        blocking: Redis,
        redis: Redis,
        keys: Keys,
        engine_id: str,
        outbox: Outbox,
        calls: Subscriptions,
        *,
        begun: Callable[[str], None],
        unmarked: Callable[[], Collection[str]],
    ) -> None:
        """`begun` is told of each call that rings, waited for or not: it has begun, or ended. It must not wait.

        `unmarked`: see `Auditor`.
        """
        self._blocking = blocking
        self._redis = redis
        self.auditor = Auditor(EngineLedger(redis, keys), outbox, unmarked)
        self.unpublished = self.auditor.unpublished
        self.key = keys.mailbox(engine_id)
        self._calls = calls
        self._begun = begun
        self._last = ""
        self._late: list[str] = []
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Read and sweep, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(), name="mailbox reader")
            tasks.create_task(self._sweep(), name="mailbox sweep")

    def look_up(self, correlation_ids: Iterable[str]) -> None:
        """Look these calls up soon: their replies may have come before anybody waited for them."""
        self._late += correlation_ids
        self._wake.set()

    async def check(self, correlation_ids: Iterable[str]) -> None:
        """Look these calls up in the ledger now: deliver what is finished, tell what is lost."""
        ids = [correlation_id for correlation_id in correlation_ids if correlation_id in self._calls]
        for at in range(0, len(ids), AUDIT_BATCH):
            some = ids[at : at + AUDIT_BATCH]
            for correlation_id, found in await self.auditor.look(some):
                if isinstance(found, Loss):
                    self._calls.lost(correlation_id, found)
                else:
                    self._deliver(correlation_id, found)

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
            await self.check(self._calls.all())
        answer: Any = await self._blocking.xread({self.key: self._last}, count=BATCH, block=int(BLOCK_SECONDS * 1000))
        for entries in _streams(answer):
            for entry_id, fields in entries:
                self._last = entry_id.decode()
                await self._ring(fields[b"id"].decode(), fields[b"reply"])

    async def _ring(self, correlation_id: str, data: bytes) -> None:
        self._begun(correlation_id)
        if data:
            self._deliver(correlation_id, data)
        else:
            await self.check([correlation_id])

    async def _sweep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SUSPECT_SECONDS if self.auditor.suspects else SWEEP_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            late, self._late = self._late, []
            self.auditor.keep(self._calls)
            try:
                await self.check(late or self._calls.quiet_for(QUIET_SECONDS))
            except Exception as error:
                if not is_outage(error):
                    log.exception("the ledger cannot be swept")

    def _deliver(self, correlation_id: str, data: bytes) -> None:
        if correlation_id not in self._calls:
            return
        try:
            reply = decode_reply(data)
        except msgspec.DecodeError:
            log.exception("reply to call %s cannot be read", correlation_id)
            return
        self._calls.replied(correlation_id, reply)


def _streams(answer: Any) -> list[Any]:
    """The entries per stream of an XREAD answer, which is a dict on RESP3 and a list of pairs on RESP2."""
    if not answer:
        return []
    if isinstance(answer, dict):
        values: Any = answer.values()  # pyright: ignore[reportUnknownVariableType]
        return [entries for groups in values for entries in groups]
    return [entries for _, entries in answer]


class Auditor:
    """Watches over the calls of one engine."""

    def __init__(self, ledger: EngineLedger, outbox: Outbox, unmarked: Callable[[], Collection[str]]) -> None:
        """`unmarked` tells the calls that are published though the table does not say so yet: the relay knows them."""
        self._ledger = ledger
        self._outbox = outbox
        self._unmarked = unmarked
        self._suspicions = LossDetector()

    @property
    def suspects(self) -> int:
        """How many calls look lost, and may yet be put back by the worker that runs them."""
        return len(self._suspicions)

    async def look(self, correlation_ids: Sequence[str]) -> list[tuple[str, bytes | Loss]]:
        """What has become of up to AUDIT_BATCH calls: the terminal reply, undecoded, or a loss that is certain.

        Raises what redis raises.
        """
        try:
            found = await self._ledger.audit(correlation_ids)
        except Exception:
            self._suspicions.clear()
            raise
        lost = [(correlation_id, each) for correlation_id, each in found if isinstance(each, Loss)]
        certain = self._suspicions.looked(correlation_ids, lost, asyncio.get_running_loop().time())
        ended = [(correlation_id, each) for correlation_id, each in found if not isinstance(each, Loss)]
        return [*ended, *await self._published(certain)]

    async def unpublished(self, correlation_ids: Sequence[str]) -> frozenset[str]:
        """Which of these calls were not published yet. When nobody knows, none: they may well have been."""
        # While a disk is full marks cannot be written: the table says "waiting" of calls that are long with a worker.
        unmarked = self._unmarked()
        try:
            waiting = frozenset(row.event_id for row in await self._outbox.calls(correlation_ids))
        except StorageUnavailableError as error:
            log.warning("whether calls were published cannot be read: %s", error)
            return frozenset()
        return waiting.difference(unmarked, self._unmarked())

    def keep(self, waited_for: Container[str]) -> None:
        """Suspect no others: nobody waits for them any more."""
        self._suspicions.keep(waited_for)

    async def _published(self, lost: Sequence[tuple[str, Loss]]) -> list[tuple[str, Loss]]:
        """Without the calls whose ledger is missing because the relay has not made it yet."""
        missing = [correlation_id for correlation_id, loss in lost if loss is Loss.MISSING]
        waiting = await self.unpublished(missing) if missing else frozenset[str]()
        for correlation_id in waiting:
            self._suspicions.forget(correlation_id)
        return [(correlation_id, loss) for correlation_id, loss in lost if correlation_id not in waiting]
