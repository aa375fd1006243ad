"""What the relay is to publish next: the rows in its hands, and those that stay in the table until their turn comes.

A row comes in by the commit that wrote it, or, where that was missed, by looking into the table. Of calls that are held
back only the id is remembered; their rows are read again when they may go. What was looked at once is not looked at
again, for a while: `_seen` is how far the table is known.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from dialog_engine.chat.outbox import TOOL_CALL_FINISHED, Outbox, OutboxRow
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.relay.fair_scheduler import FairScheduler
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
LOOK_BACK_SECONDS = 30.0
"""How often the table is read again from its beginning. Rows may become visible out of order: on PostgreSQL a lower
number may be committed after a higher one, and a commit whose answer was lost offers nothing. Those are found so."""


class _Request(msgspec.Struct):
    subject: str


_request_decoder = msgspec.json.Decoder(_Request)


class PublishQueue:
    """The rows on their way to being published, and the shares of the calls among them."""

    def __init__(self, outbox: Outbox, window: int, *, look_back_seconds: float = LOOK_BACK_SECONDS) -> None:
        """`window`: see `FairScheduler`."""
        self._outbox = outbox
        self._window = window
        self._shares = FairScheduler(window)
        self._offered: OrderedDict[tuple[str, str], OutboxRow] = OrderedDict()
        self._in_hand: set[int] = set()
        self._refused: dict[str, int] = {}
        """Calls that were told that they will not run, and whose answers are not in the table yet."""
        self._unmarked: list[str] = []
        self._seen = 0
        self._look_back_seconds = look_back_seconds
        self._look_back_at = 0.0
        self._counted = False
        self.look_at = 0.0
        """When to look into the table, on the loop's clock."""

    @property
    def held(self) -> int:
        """How many calls wait for others of their subject."""
        return self._shares.held

    @property
    def not_begun(self) -> int:
        """How many calls of this engine have not begun."""
        return len(self._shares)

    @property
    def ready(self) -> bool:
        """Whether there is a row to publish without looking for one."""
        return bool(self._offered or self._unmarked) or self._shares.ready

    def begin(self, in_hand: Iterable[OutboxRow]) -> None:
        """Begin anew: everything is in the table, but these rows are not to be taken from there."""
        self._shares = FairScheduler(self._window)
        self._offered.clear()
        self._unmarked.clear()
        self._in_hand = {row.seq for row in in_hand} | set(self._refused.values())
        self._seen, self._counted, self.look_at = 0, False, 0.0

    def offer(self, row: OutboxRow) -> bool:
        """Take a row that was just committed. False when it is a call that is held back."""
        if self._known(row):
            return True
        if row.event_type == TOOL_CALL_FINISHED:
            self._end(row.event_id)
        elif row.event_type == TOOL_CALL_REQUESTED and (subject := _subject(row)) is not None:
            if row.attempts:
                self._shares.stand(subject, row.event_id)  # its turn had come before
            elif not self._shares.enter(subject, row.event_id):
                return False
        self._take(row)
        return True

    def refuse(self, row: OutboxRow) -> None:
        """A call that is held back is not to be published now."""
        self._shares.leave(row.event_id)
        self._in_hand.add(row.seq)

    def refused(self, row: OutboxRow) -> None:
        """A call was told that it will not run. Its row goes with that answer, and is not to be published before."""
        self.refuse(row)
        self._refused[row.event_id] = row.seq

    def begun(self, correlation_id: str) -> None:
        """A call has begun or ended, so the workers had it: it stands in nobody's way any more."""
        if self._shares.leave(correlation_id):
            # It was published, and the answer was lost: it is done again, which changes nothing, to be marked.
            self._unmarked.append(correlation_id)

    def in_the_way(self, limit: int) -> list[str]:
        """Published calls that others wait for: about `limit`, those first that should have begun first."""
        return [] if self._offered else self._shares.in_the_way(limit)

    async def next(self, limit: int) -> list[OutboxRow]:
        """Rows to publish now. They are in hand until they are put down or done."""
        while not self._offered and (self._unmarked or self._shares.ready):
            if not await self._release(limit):
                break
        if not self._offered and asyncio.get_running_loop().time() >= self.look_at:
            await self._look(limit)
        return [self._offered.popitem(last=False)[1] for _ in range(min(limit, len(self._offered)))]

    def put_down(self, failed: Sequence[OutboxRow]) -> None:
        """These could not be published, so others are not tried. All are safe in the table, and keep their order."""
        for row in reversed([*failed, *self._offered.values()]):
            self._in_hand.discard(row.seq)
            if row.event_type == TOOL_CALL_REQUESTED and row.event_id in self._shares:
                self._shares.put_back(row.event_id)
            else:
                self.look_again(row)
        self._offered.clear()

    def look_again(self, row: OutboxRow) -> None:
        """Let go of a row: what is to become of it is in the table."""
        self._shares.leave(row.event_id)
        self._in_hand.discard(row.seq)
        self._seen = min(self._seen, row.seq - 1)
        self.look_at = 0.0

    def done(self, rows: Iterable[OutboxRow]) -> None:
        """The table says of these that they are not to be published, or not now."""
        self._in_hand.difference_update(row.seq for row in rows)

    def _take(self, row: OutboxRow) -> None:
        self._in_hand.add(row.seq)
        self._offered[row.event_type, row.event_id] = row

    def _end(self, correlation_id: str) -> None:
        """The call was answered; should its request still wait here, it goes nowhere."""
        self._shares.leave(correlation_id)
        if row := self._offered.pop((TOOL_CALL_REQUESTED, correlation_id), None):
            self._in_hand.discard(row.seq)
        if (seq := self._refused.pop(correlation_id, None)) is not None:
            self._in_hand.discard(seq)

    async def _release(self, limit: int) -> bool:
        """Take calls whose turn has come from the table. False when it cannot be read."""
        unmarked, self._unmarked = self._unmarked[:limit], self._unmarked[limit:]
        calls = self._shares.take(limit - len(unmarked))
        try:
            rows = {row.event_id: row for row in await self._outbox.calls([*unmarked, *calls])}
        except StorageUnavailableError as error:
            log.warning("the outbox cannot be read: %s", error)
            self._unmarked += unmarked
            for call in reversed(calls):
                if call in self._shares:
                    self._shares.put_back(call)
            return False
        for call in unmarked:
            if call in rows:
                self._take(rows[call])
        for call in calls:
            if call in rows and call in self._shares:
                self._take(rows[call])
            else:
                self._shares.leave(call)  # it was answered meanwhile
        return True

    async def _look(self, limit: int) -> None:
        """Look into the table for rows that nobody offered: from before the start, or put off and due again."""
        now = asyncio.get_running_loop().time()
        self.look_at = now + POLL_SECONDS
        if now >= self._look_back_at:
            self._look_back_at, self._seen = now + self._look_back_seconds, 0
        page = limit + len(self._in_hand)
        try:
            if not self._counted:
                await self._count()
            rows = await self._outbox.waiting(page, after=self._seen)
        except StorageUnavailableError as error:
            log.warning("the outbox cannot be read: %s", error)
            return
        for row in rows:
            if not row.attempts:
                self._seen = max(self._seen, row.seq)
            self.offer(row)
        if len(rows) == page:
            self.look_at = 0.0  # there may be more

    async def _count(self) -> None:
        """Calls that an earlier life published have their places."""
        for row in await self._outbox.unanswered():
            subject = _subject(row)
            if subject is not None:
                self._shares.stand(subject, row.event_id)
        self._counted = True

    def _known(self, row: OutboxRow) -> bool:
        return row.seq in self._in_hand or (row.event_type == TOOL_CALL_REQUESTED and row.event_id in self._shares)


def _subject(row: OutboxRow) -> str | None:
    """Whose call it is; None when that cannot be read: whoever publishes it will say what is wrong."""
    try:
        return _request_decoder.decode(row.payload).subject
    except msgspec.DecodeError:
        return None
