"""The engine's mailbox: one reader for the replies to all of its calls.

The reply of a call is stored in its response channel. The mailbox notifies the engine of it, with small replies inline.
Large replies, and those whose notification was lost, are read from the channel by a sweep over the ledger: such a reply
is seconds late and never lost. The same sweep finds calls that Redis has lost something of.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from redis.asyncio import Redis

from callstream_runtime.loops import kept_running
from callstream_runtime.outage_log import OutageLog
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.calls.losses import CERTAIN_AFTER_SECONDS, LossDetector
from dialog_engine.calls.subscriptions import Subscriptions
from dialog_engine.chat.outbox import Outbox, OutboxRow
from dialog_engine.errors import StorageUnavailableError
from plugins_contract.encryption import Cipher, DecryptionError
from plugins_contract.keys import Keys
from plugins_contract.ledger import AUDIT_BATCH, EngineLedger, decode_reply
from plugins_contract.ledger.replies import Loss

log = logging.getLogger(__name__)

BLOCK_SECONDS = 2.5
BATCH = 256


@dataclass(frozen=True, slots=True)
class MailboxTimes:
    """How calls are looked up whose messages do not come, in seconds."""

    sweep: float = 2.5
    suspect: float = 1.0
    """How soon the ledger is swept again while calls look lost."""
    quiet: float = 1.5
    """The sweep looks up calls without a message for this long: a lost notification costs less than five seconds."""
    certain_after: Mapping[Loss, float] = field(default_factory=lambda: CERTAIN_AFTER_SECONDS)
    """For how long a call must have been found lost."""


class Publisher(Protocol):
    """What the mailbox needs from the part that publishes calls."""

    def begun(self, correlation_id: str) -> None:
        """A call has begun or ended, whether or not this engine waits for it. Must not block."""
        ...

    def unmarked(self) -> Collection[str]:
        """The calls that are published and not marked so in the outbox yet."""
        ...

    def offered_to(self, row: OutboxRow) -> str:
        """The incarnation of Redis that the call in an unpublished row may have been offered to."""
        ...


class Mailbox:
    """Reads the mailbox of one engine. `blocking` has its own connection; `redis` is shared."""

    def __init__(
        self,
        blocking: Redis,
        redis: Redis,
        keys: Keys,
        engine_id: str,
        outbox: Outbox,
        calls: Subscriptions,
        *,
        publisher: Publisher,
        cipher: Cipher,
        times: MailboxTimes = MailboxTimes(),
    ) -> None:
        self._times = times
        self._blocking = blocking
        self._redis = redis
        self.auditor = Auditor(EngineLedger(redis, keys, cipher=cipher), outbox, publisher, times.certain_after)
        self.unpublished = self.auditor.unpublished
        self.key = keys.mailbox(engine_id)
        self._calls = calls
        self._publisher = publisher
        self._cipher = cipher
        self._last = ""
        self._late: list[str] = []
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Read and sweep until cancelled."""
        async with kept_running(self._read, self._sweep):
            await asyncio.Future()

    def look_up(self, correlation_ids: Iterable[str]) -> None:
        """Look these calls up soon: their replies may have come before they were waited for."""
        self._late += correlation_ids
        self._wake.set()

    async def check(self, correlation_ids: Iterable[str]) -> None:
        """Look these calls up in the ledger now, and deliver their replies and losses."""
        ids = [correlation_id for correlation_id in correlation_ids if correlation_id in self._calls]
        for at in range(0, len(ids), AUDIT_BATCH):
            some = ids[at : at + AUDIT_BATCH]
            for correlation_id, found in await self.auditor.look(some):
                if isinstance(found, Loss):
                    self._calls.lost(correlation_id, found)
                else:
                    self._deliver(correlation_id, found)

    async def _read(self) -> None:
        pause, self._last = 0.0, ""
        while True:
            try:
                await self._read_some()
                pause = 0.0
            except RedisUnavailable:
                pause = min(max(pause * 2, 0.1), 2.0)
                await asyncio.sleep(pause)
                # A mailbox that was lost and created again may have lower ids: ask for its newest one.
                self._last = ""

    async def _read_some(self) -> None:
        if not self._last:
            newest: Any = await self._redis.xrevrange(self.key, count=1)
            self._last = newest[0][0].decode() if newest else "0-0"
            await self.check(self._calls.all())
        answer: Any = await self._blocking.xread({self.key: self._last}, count=BATCH, block=int(BLOCK_SECONDS * 1000))
        large: list[str] = []
        for entries in _streams(answer):
            for entry_id, fields in entries:
                self._last = entry_id.decode()
                correlation_id = fields[b"id"].decode()
                self._publisher.begun(correlation_id)
                if data := fields[b"reply"]:
                    self._deliver(correlation_id, data)
                else:
                    large.append(correlation_id)
        await self.check(large)

    async def _sweep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._times.suspect if self.auditor.suspects else self._times.sweep):
                    await self._wake.wait()
            self._wake.clear()
            late, self._late = self._late, []
            self.auditor.keep(self._calls)
            with contextlib.suppress(RedisUnavailable):
                await self.check(late or self._calls.quiet_for(self._times.quiet))

    def _deliver(self, correlation_id: str, data: bytes) -> None:
        if correlation_id not in self._calls:
            return
        try:
            reply = decode_reply(data, correlation_id, cipher=self._cipher, sealed=self._calls.sealed(correlation_id))
        except (msgspec.DecodeError, DecryptionError):
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
    """Looks up the calls of one engine in the ledger, and reports those that Redis has certainly lost something of."""

    def __init__(
        self, ledger: EngineLedger, outbox: Outbox, publisher: Publisher, certain_after: Mapping[Loss, float]
    ) -> None:
        self._ledger = ledger
        self._outbox = outbox
        self._publisher = publisher
        self._outages = OutageLog(log, "the outbox, for the audit of calls,")
        self._detector = LossDetector(certain_after)

    @property
    def suspects(self) -> int:
        """How many calls look lost and may still be restored by the worker that runs them."""
        return len(self._detector)

    async def look(self, correlation_ids: Sequence[str]) -> list[tuple[str, bytes | Loss]]:
        """The terminal replies, encoded, and the certain losses among up to AUDIT_BATCH calls.

        Raises:
            RedisUnavailable: Redis cannot be asked now.
        """
        with contextlib.ExitStack() as unanswered:
            unanswered.callback(self._detector.clear)
            found = await self._ledger.audit(correlation_ids)
            unanswered.pop_all()
        lost = [(correlation_id, each) for correlation_id, each in found if isinstance(each, Loss)]
        certain = self._detector.audited(correlation_ids, lost, asyncio.get_running_loop().time())
        ended = [(correlation_id, each) for correlation_id, each in found if not isinstance(each, Loss)]
        return [*ended, *await self._published(certain)]

    async def unpublished(self, correlation_ids: Sequence[str]) -> Mapping[str, str]:
        """Which of these calls were not published yet, and to which incarnation of Redis each may have been offered.

        None of them when the outbox cannot be read.
        """
        # While the disk is full no row can be marked, so the table still holds calls that a worker may have.
        unmarked = self._publisher.unmarked()
        try:
            rows = await self._outbox.calls(correlation_ids)
        except StorageUnavailableError as error:
            self._outages.failed(error)
            return {}
        self._outages.worked()
        published = {*unmarked, *self._publisher.unmarked()}
        return {row.event_id: self._publisher.offered_to(row) for row in rows if row.event_id not in published}

    def keep(self, waited_for: Container[str]) -> None:
        """Forget all calls but those `waited_for`."""
        self._detector.keep(waited_for)

    async def _published(self, lost: Sequence[tuple[str, Loss]]) -> list[tuple[str, Loss]]:
        """`lost` without the calls whose ledger is missing because they were not published yet."""
        missing = [correlation_id for correlation_id, loss in lost if loss is Loss.MISSING]
        waiting = await self.unpublished(missing) if missing else ()
        for correlation_id in waiting:
            self._detector.forget(correlation_id)
        return [(correlation_id, loss) for correlation_id, loss in lost if correlation_id not in waiting]
