"""The relay: takes committed events from the outbox to where they belong.

It is woken by the commit itself and gets the rows in hand; looking into the table is the back-up, for what an earlier
life left and for what could not be published. A row that cannot be published waits by itself; the others go on.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from dialog_engine.chat.outbox import Outbox, OutboxRow
from dialog_engine.errors import ConfigurationError, StorageUnavailableError
from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys
from plugins_contract.ledger import EngineLedger
from plugins_contract.ledger.replies import AlreadyFinished, AlreadyQueued, Conflict, Enqueued, Overloaded, Queued
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import decode_request

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
BATCH = 64
FACTS_KEPT = 100_000
"""About how many entries the streams of facts keep."""
RETRY_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0
"""With Redis away: the first pause, and the longest."""
MAX_RETRY_MS = 60_000
"""The longest pause of a row that cannot be published."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request cannot be handed to the workers: it cannot be read, or Redis refuses the command. It was not run."""

    reason: str


OnEnqueued = Callable[[str, Enqueued | Rejected], None]
"""Told what became of a tool call's request, by correlation id."""


def check_routes(event_types: Collection[str], routes: Mapping[str, str]) -> None:
    """Every event type needs a route, and a tool call's is fixed.

    Raises:
        ConfigurationError: it names the type.
    """
    missing = sorted(set(event_types) - set(routes))
    if missing:
        raise ConfigurationError(
            f"OUTBOX_ROUTES has no stream for {', '.join(missing)}: add one, such as"
            f' {{"{missing[0]}": "events.analytics"}}'
        )
    if routes[TOOL_CALL_REQUESTED] != "events.plugins":
        raise ConfigurationError(
            f"OUTBOX_ROUTES sends {TOOL_CALL_REQUESTED} to {routes[TOOL_CALL_REQUESTED]!r}: workers read"
            " events.plugins only"
        )


class Relay:
    """Publishes outbox rows. One per engine."""

    def __init__(
        self,
        outbox: Outbox,
        redis: Redis,
        ledger: EngineLedger,
        keys: Keys,
        routes: Mapping[str, str],
        on_enqueued: OnEnqueued,
        backlog_limit: int = 0,
    ) -> None:
        self._outbox = outbox
        self._redis = redis
        self._ledger = ledger
        self._keys = keys
        self._routes = routes
        self._on_enqueued = on_enqueued
        self._backlog_limit = backlog_limit
        self._offered: list[OutboxRow] = []
        self._in_hand: set[int] = set()
        self._published: list[OutboxRow] = []
        self._wake = asyncio.Event()
        self._mark = asyncio.Event()
        self._look_at = 0.0
        self._pause = 0.0

    def offer(self, rows: Sequence[OutboxRow]) -> None:
        """Take rows that were just committed."""
        self._offered.extend(rows)
        self._in_hand.update(row.seq for row in rows)
        self._wake.set()

    async def run(self) -> None:
        """Publish, for ever."""
        # What an earlier run had in its hands when it failed is in the table.
        self._put_down()
        self._in_hand = {row.seq for row in self._published}
        self._mark.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish_all(), name="relay")
            tasks.create_task(self._mark_published(), name="relay marks")

    async def _publish_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._pause:
                await asyncio.sleep(self._pause)
            # While Redis is away one row finds out whether it is back; all others stay where they are safe.
            rows = await self._next(1 if self._pause else BATCH)
            if not rows:
                self._wake.clear()
                try:
                    async with asyncio.timeout_at(self._look_at):
                        await self._wake.wait()
                except TimeoutError:
                    pass  # time to look into the table
                continue
            if all(await asyncio.gather(*(self._publish(row) for row in rows))):
                if self._pause:
                    self._pause, self._look_at = 0.0, loop.time()
            else:
                self._pause = min(max(self._pause * 2, RETRY_SECONDS), MAX_PAUSE_SECONDS)
                self._put_down()

    async def _next(self, limit: int) -> list[OutboxRow]:
        """Rows that were offered, or else, when it is time to look, rows from the table."""
        rows, self._offered = self._offered[:limit], self._offered[limit:]
        loop = asyncio.get_running_loop()
        if rows or loop.time() < self._look_at:
            return rows
        rows = await self._look(limit)
        # More than were asked for may be there: look again at once.
        self._look_at = loop.time() + (POLL_SECONDS if len(rows) < limit else 0)
        return rows

    def _put_down(self) -> None:
        """Forget what was offered: it is in the table."""
        self._in_hand.difference_update(row.seq for row in self._offered)
        self._offered.clear()
        self._look_at = 0.0

    async def _look(self, limit: int) -> list[OutboxRow]:
        try:
            rows = await self._outbox.waiting(limit + len(self._in_hand))
        except StorageUnavailableError as error:
            log.warning("the outbox cannot be read: %s", error)
            return []
        found = [row for row in rows if row.seq not in self._in_hand][:limit]
        self._in_hand.update(row.seq for row in found)
        return found

    async def _publish(self, row: OutboxRow) -> bool:
        """Publish one row. False when Redis could not be reached."""
        try:
            if row.event_type == TOOL_CALL_REQUESTED:
                await self._request(row)
            else:
                stream = self._keys.route(self._routes[row.event_type])
                fields: Any = {"eventType": row.event_type, "id": row.event_id, "event": row.payload}
                await self._redis.xadd(stream, fields, maxlen=FACTS_KEPT, approximate=True)
        except Exception as error:
            if is_outage(error):
                self._in_hand.discard(row.seq)
                return False
            log.exception("outbox row %d (%s) cannot be published", row.seq, row.event_type)
            await self._reject(row, f"{type(error).__name__}: {error}"[:500])
            return True
        self._published.append(row)
        self._mark.set()
        return True

    async def _request(self, row: OutboxRow) -> None:
        answer = await self._ledger.enqueue(decode_request(row.payload), backlog_limit=self._backlog_limit)
        match answer:
            case Queued() | AlreadyQueued() | AlreadyFinished() | Overloaded():
                pass
            case Conflict():
                log.error("correlation id %s names another request already", row.event_id)
        self._on_enqueued(row.event_id, answer)

    async def _reject(self, row: OutboxRow, reason: str) -> None:
        """Put the row off. Its call, if somebody waits for it, is answered now, and the row goes with the answer."""
        delay = min(1000 * 2**row.attempts, MAX_RETRY_MS)
        try:
            await self._outbox.postpone(row, reason, delay)
        except StorageUnavailableError as error:
            log.warning("outbox row %d cannot be postponed: %s", row.seq, error)
        self._in_hand.discard(row.seq)
        if row.event_type == TOOL_CALL_REQUESTED:
            self._on_enqueued(row.event_id, Rejected(reason))

    async def _mark_published(self) -> None:
        """Marks go in groups, behind the publication: a mark that is lost costs one idempotent repetition."""
        while True:
            await self._mark.wait()
            self._mark.clear()
            rows = self._published.copy()
            try:
                if rows:
                    await self._outbox.published(rows)
            except StorageUnavailableError as error:
                # They stay in hand, or else facts would be published over and over while a disk is full.
                log.warning("published rows cannot be marked: %s", error)
                await asyncio.sleep(POLL_SECONDS)
                self._mark.set()
                continue
            del self._published[: len(rows)]
            self._in_hand.difference_update(row.seq for row in rows)
