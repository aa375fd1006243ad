"""The relay publishes committed outbox rows to their Redis streams.

Each commit offers its rows to the relay; polling the table finds those of an earlier life and those that could not be
published. A row that cannot be published is postponed and does not hold up the others: see `refusals`. Calls of a
subject that has its share of the stream are held back: see `fair_scheduler`.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from callstream_runtime.outage_log import OutageLog
from callstream_runtime.pipelined import PipelinedRedis
from callstream_runtime.redis_errors import RedisUnavailable, was_refused
from dialog_engine.calls.mailbox import Publisher
from dialog_engine.calls.subscriptions import CallObserver, NotPublished, Subscriptions
from dialog_engine.chat.outbox import TOOL_CALL_FINISHED, TURN_FINISHED, Outbox, OutboxRelay, OutboxRow
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.relay.blocking import BlockingCalls
from dialog_engine.relay.offers import Offers
from dialog_engine.relay.publish_queue import PublishQueue, RelayTimes
from dialog_engine.relay.refusals import Refusals, check_sealed, rejected
from plugins_contract.encryption import Cipher, DecryptionError, seal_request
from plugins_contract.keys import Keys
from plugins_contract.ledger import NEVER_OFFERED, EngineLedger, Offer
from plugins_contract.ledger.replies import (
    AlreadyFinished,
    AlreadyQueued,
    Conflict,
    Enqueued,
    Moved,
    Overloaded,
    Queued,
)
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import ToolCallRequested, UnsupportedEventError, decode_request

log = logging.getLogger(__name__)

BATCH = 64
FACTS_KEPT = 100_000
"""About how many entries a stream of facts keeps."""
RETRY_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0
"""The first and the longest pause while Redis is unavailable."""


class Relay(Publisher, OutboxRelay):
    """Publishes outbox rows. One per engine."""

    def __init__(
        self,
        outbox: Outbox,
        redis: PipelinedRedis,
        ledger: EngineLedger,
        keys: Keys,
        routes: Mapping[str, str],
        calls: Subscriptions,
        *,
        cipher: Cipher,
        backlog_limit: int = 0,
        subject_window: int = 0,
        times: RelayTimes = RelayTimes(),
        observer: CallObserver | None = None,
    ) -> None:
        """Calls are refused above `backlog_limit` waiting calls, and held back above `subject_window` of one subject; 0
        disables either."""
        self._times = times
        self._outbox = outbox
        self._outages = OutageLog(log, "the outbox, for marks,")
        self._redis = redis
        self._ledger = ledger
        self._keys = keys
        self._routes = routes
        self._calls = calls
        self._backlog_limit = backlog_limit
        self._observer = observer or CallObserver()
        self._cipher = cipher
        self._queue = PublishQueue(outbox, subject_window, times)
        self._refusals = Refusals(outbox, self._queue, calls, self._observer)
        self._refused: list[tuple[OutboxRow, Overloaded]] = []
        self._published: dict[tuple[str, str], OutboxRow] = {}
        self._offers = Offers(outbox, ledger)
        self._blocking = BlockingCalls(redis, keys, self._queue, times.poll)
        self._wake = asyncio.Event()
        self._mark = asyncio.Event()
        self._pause = 0.0

    @property
    def held(self) -> int:
        """How many calls are held back because their subject has `subject_window` calls in the stream."""
        return self._queue.held

    def unmarked(self) -> frozenset[str]:
        """The calls that are published and not marked so in the table yet, such as while the disk is full."""
        return frozenset(row.event_id for row in self._published.values() if row.event_type == TOOL_CALL_REQUESTED)

    def offers_to(self, requests: Sequence[ToolCallRequested]) -> Sequence[str]:
        if not requests or self._pause:
            return [NEVER_OFFERED] * len(requests)
        room = self._queue.room(requests[0].subject)
        return [self._offers.incarnation if at < room else NEVER_OFFERED for at in range(len(requests))]

    def offered_to(self, row: OutboxRow) -> str:
        """The incarnation of Redis that the call in an unpublished row may have been offered to."""
        return self._offers.offered_to(row)

    def offer(self, rows: Sequence[OutboxRow]) -> None:
        for row in rows:
            if row.event_type == TOOL_CALL_FINISHED:  # the same commit deleted the request
                self._forget([(TOOL_CALL_REQUESTED, row.event_id)])
                self._offers.ended(row.event_id)
            self._offers.committed(row)
            # Only a subject that has its share of the stream is refused for the length of the backlog.
            if not self._queue.offer(row) and 0 < self._backlog_limit < (waiting := self._queue.waiting):
                self._queue.refuse(row)
                self._refused.append((row, Overloaded(waiting - 1)))
        self._wake.set()

    def begun(self, correlation_id: str) -> None:
        """A call has begun or ended. When this is missed, the ledger is asked at the next poll."""
        if self._queue.begun(correlation_id):
            self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        # Rows that an earlier run was publishing when it failed are in the table.
        self._refused.clear()
        self._queue.begin(self._published.values())
        if self._published:
            self._mark.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish_all(), name="relay")
            tasks.create_task(self._mark_published(), name="relay marks")

    async def _publish_all(self) -> None:
        while True:
            if self._pause:
                await asyncio.sleep(self._pause)
            if self._refused:
                refused, self._refused = self._refused, []
                await self._refusals.postpone(refused)
            available = await self._offers.ask()
            # While Redis is unavailable one row at a time is tried; the others stay in the table.
            rows = await self._queue.next(1 if self._pause else BATCH)
            if not rows:
                self._pause = 0.0
                await self._rest()
                continue
            if failed := await self._publish(rows) if available else rows:
                # Redis, or the outbox, is not available. Another Redis may be there afterwards.
                self._pause = min(max(self._pause * 2, RETRY_SECONDS), MAX_PAUSE_SECONDS)
                self._offers.forget_incarnation()
                self._queue.put_back(failed)
            elif self._pause:
                self._pause, self._queue.look_at = 0.0, 0.0

    async def _rest(self) -> None:
        """Nothing can be published now: wait until a row is offered or released, or the table is polled."""
        self._wake.clear()
        if self._queue.has_blocking:
            await self._blocking.check()
        # A call may have been refused since the event was cleared above.
        if self._queue.ready or self._refused:
            return
        timer = asyncio.get_running_loop().call_at(self._queue.wake_at, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _publish(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Publish rows: calls in one write, then facts in one write. Returns those that did not reach Redis."""
        calls: list[tuple[OutboxRow, ToolCallRequested]] = []
        facts: list[OutboxRow] = []
        refused: list[tuple[OutboxRow, NotPublished]] = []
        for row in rows:
            try:
                if row.event_type != TOOL_CALL_REQUESTED:
                    if self._cipher.strict and row.event_type == TURN_FINISHED:
                        check_sealed(row)
                    facts.append(row)
                    continue
                request = decode_request(row.payload)
                if self._cipher.strict and not request.sealed:  # it has waited since before everything was encrypted
                    request = seal_request(request, self._cipher)
                calls.append((row, request))
            except (UnsupportedEventError, DecryptionError, msgspec.DecodeError) as error:
                refused.append((row, rejected(row, error)))
        failed: list[OutboxRow] = []
        if calls:
            failed += await self._enqueue(calls, refused)
        if facts:
            failed += await self._publish_facts(facts, refused)
        if refused:
            await self._refusals.postpone(refused)
        return failed

    async def _enqueue(
        self, calls: Sequence[tuple[OutboxRow, ToolCallRequested]], refused: list[tuple[OutboxRow, NotPublished]]
    ) -> list[OutboxRow]:
        """Enqueue calls and notify the turns that wait for them, but not of those that are `refused`.

        Returns the rows that did not reach Redis.
        """
        failed: list[OutboxRow] = []
        requests = {row.seq: request for row, request in calls}
        rows: Sequence[OutboxRow] = [row for row, _ in calls]
        while rows:
            stamped = await self._offers.stamp(rows)
            if stamped is None:
                return [*failed, *rows]
            if len(stamped) < len(rows):  # another engine owns the others
                self._queue.look_again_for(rows, but=stamped)
            offers = [Offer(requests[row.seq], *self._offers.send(row)) for row in stamped]
            with self._observer.publishing([offer.request for offer in offers]):
                answers = await self._ledger.enqueue_each(offers, backlog_limit=self._backlog_limit)
            rows = []
            for row, offer, answer in zip(stamped, offers, answers, strict=True):
                if not offer.sent and isinstance(answer, Exception) and was_refused(answer):
                    self._offers.not_sent(row)
                match answer:
                    case Moved() if not offer.sent:  # nobody has it: it is offered to the incarnation that is there now
                        self._offers.forget_incarnation()
                        rows.append(replace(row, offered_to=NEVER_OFFERED))
                    case RedisUnavailable():
                        failed.append(row)
                    case Conflict() if self._cipher.strict and not decode_request(row.payload).sealed:
                        # It was enqueued before, clear or sealed with another nonce.
                        self._enqueued(row, requests[row.seq], AlreadyQueued(""))
                    case Overloaded() | Conflict():
                        refused.append((row, answer))
                    case Exception():
                        refused.append((row, rejected(row, answer)))
                    case _:
                        self._enqueued(row, requests[row.seq], answer)
        return failed

    def _enqueued(self, row: OutboxRow, request: ToolCallRequested, answer: Enqueued) -> None:
        """The call is in Redis, or was in an earlier incarnation: then the audit finds that its ledger is missing."""
        if isinstance(answer, Queued):
            self._queue.note_backlog(answer.backlog + 1)
            self._observer.enqueued(request, answer.entry, answer.backlog)
        elif isinstance(answer, AlreadyFinished):
            self._queue.begun(row.event_id)
        self._calls.enqueued(row.event_id, answer)
        self._note_published(row)

    async def _publish_facts(
        self, rows: Sequence[OutboxRow], refused: list[tuple[OutboxRow, NotPublished]]
    ) -> list[OutboxRow]:
        """Add facts to the streams of their routes. Returns those that did not reach Redis."""
        answers = await self._redis.execute_each([self._addition(row) for row in rows])
        failed: list[OutboxRow] = []
        for row, answer in zip(rows, answers, strict=True):
            if not isinstance(answer, Exception):
                self._note_published(row)
            elif isinstance(answer, RedisUnavailable):
                failed.append(row)
            else:
                refused.append((row, rejected(row, answer)))
        return failed

    def _addition(self, row: OutboxRow) -> Sequence[str | bytes | int]:
        stream = self._keys.route(self._routes[row.event_type])
        fields = ("eventType", row.event_type, "id", row.event_id, "event", row.payload)
        return ("XADD", stream, "MAXLEN", "~", FACTS_KEPT, "*", *fields)

    def _note_published(self, row: OutboxRow) -> None:
        self._published[row.event_type, row.event_id] = row
        self._mark.set()

    def _forget(self, keys: Iterable[tuple[str, str]]) -> None:
        """These rows need no mark any more."""
        self._queue.done([row for key in keys if (row := self._published.pop(key, None))])

    async def _mark_published(self) -> None:
        """Mark published rows in groups. When a mark is lost, its row is published again, which is idempotent."""
        while True:
            await self._mark.wait()
            await asyncio.sleep(self._times.mark)
            self._mark.clear()
            rows = self._published.copy()
            try:
                if rows:
                    await self._outbox.published([*rows.values()])
                    self._outages.worked()
            except StorageUnavailableError as error:
                # They stay in hand: otherwise facts would be published again and again while the disk is full.
                self._outages.failed(error)
                await asyncio.sleep(self._times.poll)
                self._mark.set()
                continue
            self._forget(rows)
