"""The rows that the relay publishes next, and those that stay in the table until they are due.

A row is offered by the commit that wrote it, or, where that was missed, found by polling the table. Of calls that are
held back only the id is kept in memory; their rows are read again when they may be published. Rows that were seen are
not read again for a while (`RelayTimes.look_back`): `_seen` is the highest sequence number that is known.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from callstream_runtime.outage_log import OutageLog
from dialog_engine.chat.outbox import TOOL_CALL_FINISHED, Outbox, OutboxRow
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.relay.fair_scheduler import FairScheduler
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED

log = logging.getLogger(__name__)

BACKLOG_KNOWN_SECONDS = 5.0
"""How long the last known length of the stream is used."""


@dataclass(frozen=True, slots=True)
class RelayTimes:
    """The times of the relay, in seconds."""

    poll: float = 1.0
    """How often the table is read, and the ledger asked about calls that block others."""
    facts: float = 0.05
    """How long facts are collected before they are published together: no turn waits for them."""
    mark: float = 0.1
    """How long published rows are collected before they are marked in one commit. Most calls are answered by then, and
    their rows are deleted."""
    look_back: float = 30.0
    """How often the table is read again from its beginning. On PostgreSQL a lower sequence number may be committed
    after a higher one, and a commit whose answer was lost offers nothing: this finds both."""


class _Request(msgspec.Struct):
    subject: str


_request_decoder = msgspec.json.Decoder(_Request)


class PublishQueue:
    """The rows that are to be published, with the scheduling of the calls among them."""

    def __init__(self, outbox: Outbox, window: int, times: RelayTimes) -> None:
        """`window`: see `FairScheduler`."""
        self._times = times
        self._outbox = outbox
        self._outages = OutageLog(log, "the outbox")
        self._window = window
        self._scheduler = FairScheduler(window)
        self._offered: OrderedDict[tuple[str, str], OutboxRow] = OrderedDict()
        self._facts: list[OutboxRow] = []
        self._facts_at = math.inf
        self._in_hand: set[int] = set()
        self._refused: dict[str, int] = {}
        """Sequence numbers of calls that were answered as refused, whose answers are not in the table yet."""
        self._unmarked: list[str] = []
        self._seen = 0
        self._look_back_at = 0.0
        self._counted = False
        self._backlog = 0
        self._backlog_at = 0.0
        self.look_at = 0.0
        """When to poll the table, in seconds on the clock of the event loop."""

    @property
    def held(self) -> int:
        """How many calls are held back."""
        return self._scheduler.held

    @property
    def not_begun(self) -> int:
        """How many calls of this engine have not begun."""
        return len(self._scheduler)

    @property
    def waiting(self) -> int:
        """How many calls wait, as far as it is known: those held back here, and those in the stream."""
        is_known = asyncio.get_running_loop().time() - self._backlog_at < BACKLOG_KNOWN_SECONDS
        return max(self.not_begun, self.held + (self._backlog if is_known else 0))

    def note_backlog(self, calls: int) -> None:
        """The stream has so many calls that have not begun."""
        self._backlog, self._backlog_at = calls, asyncio.get_running_loop().time()

    @property
    def has_blocking(self) -> bool:
        """Whether calls are held back, and may be asked for with `blocking`."""
        return self._scheduler.held > 0

    @property
    def ready(self) -> bool:
        """Whether there is a row to publish without polling."""
        due = self._facts_at <= asyncio.get_running_loop().time()
        return due or bool(self._offered or self._unmarked) or self._scheduler.ready

    @property
    def wake_at(self) -> float:
        """When there may be a row to publish though none is offered, in seconds on the clock of the event loop."""
        return min(self.look_at, self._facts_at)

    def begin(self, in_hand: Iterable[OutboxRow]) -> None:
        """Start over from the table, without the rows `in_hand`: those are published and not marked yet."""
        self._scheduler = FairScheduler(self._window)
        self._offered.clear()
        self._facts, self._facts_at = [], math.inf
        self._unmarked.clear()
        self._in_hand = {row.seq for row in in_hand} | set(self._refused.values())
        self._seen, self._counted, self.look_at = 0, False, 0.0

    def room(self, subject: str) -> int:
        """How many new calls of this subject would be published at once."""
        return self._scheduler.room(subject)

    def offer(self, row: OutboxRow) -> bool:
        """Take a row that was committed. False when it is a call that is held back."""
        if self._known(row):
            return True
        if row.event_type == TOOL_CALL_FINISHED:
            self._end(row.event_id)
        elif row.event_type == TOOL_CALL_REQUESTED and (subject := _subject(row)) is not None:
            if row.attempts:
                self._scheduler.add_published(subject, row.event_id)  # it was released before
            elif not self._scheduler.admit(subject, row.event_id):
                return False
        self._take(row)
        return True

    def refuse(self, row: OutboxRow) -> None:
        """A call that is held back is not published, because its row is being postponed."""
        self._scheduler.remove(row.event_id)
        self._in_hand.add(row.seq)

    def refused(self, row: OutboxRow) -> None:
        """A call was answered as refused. Its row is deleted with that answer, and must not be published before."""
        self.refuse(row)
        self._refused[row.event_id] = row.seq

    def begun(self, correlation_id: str) -> bool:
        """A call has begun or ended: it blocks no other any more. Returns whether there is a row to publish now."""
        if self._scheduler.remove(correlation_id):
            # It was published and the answer was lost. Publishing it again is idempotent, and marks the row.
            self._unmarked.append(correlation_id)
        return bool(self._unmarked) or self._scheduler.ready

    def blocking(self, limit: int) -> list[str]:
        """About `limit` published calls that others wait for, oldest first."""
        return [] if self._offered else self._scheduler.blocking(limit)

    async def next(self, limit: int) -> list[OutboxRow]:
        """Rows to publish now. They are in hand until `put_back` or `done`."""
        if self._facts_at <= asyncio.get_running_loop().time():
            self._offered.update({(row.event_type, row.event_id): row for row in self._facts})
            self._facts, self._facts_at = [], math.inf
        while not self._offered and (self._unmarked or self._scheduler.ready):
            if not await self._release(limit):
                break
        if not self._offered and asyncio.get_running_loop().time() >= self.look_at:
            await self._look(limit)
        return [self._offered.popitem(last=False)[1] for _ in range(min(limit, len(self._offered)))]

    def put_back(self, failed: Sequence[OutboxRow]) -> None:
        """These could not be published, so no others are tried. All stay in the table and keep their order."""
        for row in reversed([*failed, *self._offered.values()]):
            self._in_hand.discard(row.seq)
            if row.event_type == TOOL_CALL_REQUESTED and row.event_id in self._scheduler:
                self._scheduler.put_back(row.event_id)
            else:
                self.look_again(row)
        self._offered.clear()

    def look_again_for(self, rows: Sequence[OutboxRow], but: Sequence[OutboxRow]) -> None:
        """Put back `rows` like `look_again`, `but` not those."""
        kept = {row.seq for row in but}
        for row in rows:
            if row.seq not in kept:
                self.look_again(row)

    def look_again(self, row: OutboxRow) -> None:
        """Forget a row; the table says when it is due."""
        self._scheduler.remove(row.event_id)
        self._in_hand.discard(row.seq)
        self._seen = min(self._seen, row.seq - 1)
        self.look_at = 0.0

    def done(self, rows: Iterable[OutboxRow]) -> None:
        """These rows are marked as published in the table."""
        self._in_hand.difference_update(row.seq for row in rows)

    def _take(self, row: OutboxRow) -> None:
        self._in_hand.add(row.seq)
        if row.event_type == TOOL_CALL_REQUESTED:
            self._offered[row.event_type, row.event_id] = row
            return
        if not self._facts:
            self._facts_at = asyncio.get_running_loop().time() + self._times.facts
        self._facts.append(row)

    def _end(self, correlation_id: str) -> None:
        """The call was answered: a request that still waits here is not published."""
        self._scheduler.remove(correlation_id)
        if row := self._offered.pop((TOOL_CALL_REQUESTED, correlation_id), None):
            self._in_hand.discard(row.seq)
        if (seq := self._refused.pop(correlation_id, None)) is not None:
            self._in_hand.discard(seq)

    async def _release(self, limit: int) -> bool:
        """Read the calls that may be published now from the table. False when it cannot be read."""
        unmarked, self._unmarked = self._unmarked[:limit], self._unmarked[limit:]
        calls = self._scheduler.take(limit - len(unmarked))
        try:
            rows = {row.event_id: row for row in await self._outbox.calls([*unmarked, *calls])}
        except StorageUnavailableError as error:
            self._outages.failed(error)
            self._unmarked += unmarked
            for call in reversed(calls):
                if call in self._scheduler:
                    self._scheduler.put_back(call)
            return False
        for call in unmarked:
            if call in rows:
                self._take(rows[call])
        for call in calls:
            if call in rows and call in self._scheduler:
                self._take(rows[call])
            else:
                self._scheduler.remove(call)  # answered meanwhile
        return True

    async def _look(self, limit: int) -> None:
        """Poll the table for rows that were not offered: from before the start, or postponed and due again."""
        now = asyncio.get_running_loop().time()
        self.look_at = now + self._times.poll
        if now >= self._look_back_at:
            self._look_back_at, self._seen = now + self._times.look_back, 0
        page = limit + len(self._in_hand)
        try:
            if not self._counted:
                await self._count()
            rows = await self._outbox.waiting(page, after=self._seen)
        except StorageUnavailableError as error:
            self._outages.failed(error)
            return
        self._outages.worked()
        for row in rows:
            if not row.attempts:
                self._seen = max(self._seen, row.seq)
            self.offer(row)
        if len(rows) == page:
            self.look_at = 0.0  # there may be more

    async def _count(self) -> None:
        """Calls that were published before the start count against the window."""
        for row in await self._outbox.unanswered():
            subject = _subject(row)
            if subject is not None:
                self._scheduler.add_published(subject, row.event_id)
        self._counted = True

    def _known(self, row: OutboxRow) -> bool:
        return row.seq in self._in_hand or (row.event_type == TOOL_CALL_REQUESTED and row.event_id in self._scheduler)


def _subject(row: OutboxRow) -> str | None:
    """The subject of a call; None when it cannot be read: publishing it reports what is wrong."""
    try:
        return _request_decoder.decode(row.payload).subject
    except msgspec.DecodeError:
        return None
