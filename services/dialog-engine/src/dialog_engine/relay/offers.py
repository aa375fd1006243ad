"""To which incarnation of Redis each tool call is, or may have been, offered.

A call is offered to an incarnation only when its row in the table says so. A call that was offered to one incarnation
and is not known at the next one may have run, so it is not published there as if it were new: ENQUEUE compares the two,
in Redis itself. A server that was restarted, or that took over, gets it as one of the server before, which no worker
starts before all have reported; other data do not get it.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from callstream_runtime.outage_log import OutageLog
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.chat.outbox import Outbox, OutboxRow
from dialog_engine.errors import StorageUnavailableError
from plugins_contract.ledger import NEVER_OFFERED, UNKNOWN_INCARNATION, EngineLedger

log = logging.getLogger(__name__)


class Offers:
    """The offers of one engine."""

    def __init__(self, outbox: Outbox, ledger: EngineLedger) -> None:
        self._outbox = outbox
        self._ledger = ledger
        self._outages = OutageLog(log, "the outbox, for offers,")
        self._unsent: set[str] = set()
        """Calls whose rows name an incarnation, and that nobody has offered yet."""
        self.incarnation = NEVER_OFFERED
        """The incarnation of Redis; NEVER_OFFERED while it is not known."""

    async def ask(self) -> bool:
        """Ask which incarnation Redis is, unless that is known. False when it cannot be asked."""
        if self.incarnation == NEVER_OFFERED:
            try:
                self.incarnation = await self._ledger.incarnation()
            except RedisUnavailable:
                return False
        return True

    def forget_incarnation(self) -> None:
        """Redis may be another one by now."""
        self.incarnation = NEVER_OFFERED

    def committed(self, row: OutboxRow) -> None:
        """Take the row of a call that was committed, here or by an engine that is gone."""
        if row.offered_to and not row.sent:
            self._unsent.add(row.event_id)
        else:  # an engine that is gone may have sent it, though it was ours before
            self._unsent.discard(row.event_id)

    def ended(self, correlation_id: str) -> None:
        """The call was answered."""
        self._unsent.discard(correlation_id)

    def offered_to(self, row: OutboxRow) -> str:
        """The incarnation that the call in an unpublished row may have been offered to."""
        if row.event_id in self._unsent:
            return NEVER_OFFERED
        # Without its second part it names a server that was restarted as well.
        if row.offered_to is None or row.offered_to.endswith("/"):
            return UNKNOWN_INCARNATION
        return row.offered_to

    async def stamp(self, rows: Sequence[OutboxRow]) -> Sequence[OutboxRow] | None:
        """Write into the table to which incarnation these calls are offered next, where it names none.

        Returns the rows as they are then, without those that this engine does not own any more. None when Redis or the
        table is not available.
        """
        new = [row for row in rows if row.offered_to == NEVER_OFFERED]
        if not new:
            return rows
        if not await self.ask():
            return None
        incarnation = self.incarnation
        try:
            stamped = await self._outbox.stamp(new, incarnation)
        except StorageUnavailableError as error:
            self._outages.failed(error)
            return None
        self._outages.worked()
        self._unsent |= {row.event_id for row in new if row.seq in stamped}
        return [
            replace(row, offered_to=incarnation) if row.seq in stamped else row
            for row in rows
            if row.offered_to != NEVER_OFFERED or row.seq in stamped
        ]

    def send(self, row: OutboxRow) -> tuple[str, bool]:
        """The call is sent to Redis now. Returns where it may be published, and whether it may have been sent."""
        if row.event_id not in self._unsent:
            return self.offered_to(row), True
        self._unsent.discard(row.event_id)
        return row.offered_to or UNKNOWN_INCARNATION, False

    def not_sent(self, row: OutboxRow) -> None:
        """A call that nobody had sent before did not reach Redis, or was refused there."""
        self._unsent.add(row.event_id)
