"""Rows that cannot be published: they are postponed, and a turn that waits for such a call gets the refusal.

A refused call is not marked as published: its row is deleted with its answer, or retried while no turn waits for it.
"""

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from callstream_runtime.outage_log import OutageLog
from dialog_engine.calls.subscriptions import CallObserver, NotPublished, Subscriptions, Unpublishable, reason_of
from dialog_engine.chat.outbox import Outbox, OutboxRow, TurnFinished
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.relay.publish_queue import PublishQueue
from plugins_contract.encryption import DecryptionError, key_of
from plugins_contract.ledger.replies import Conflict, Overloaded
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import ToolCallRequested, UnsupportedEventError, decode_request

log = logging.getLogger(__name__)

MAX_RETRY_MS = 60_000
"""The longest time for which a row is postponed."""


class Refusals:
    """Postpones the rows of one engine's relay."""

    def __init__(self, outbox: Outbox, queue: PublishQueue, calls: Subscriptions, observer: CallObserver) -> None:
        self._outbox = outbox
        self._queue = queue
        self._calls = calls
        self._observer = observer
        self._outages = OutageLog(log, "the outbox, for postponements,")

    async def postpone(self, refused: Sequence[tuple[OutboxRow, NotPublished]]) -> None:
        """Postpone these rows, each for its reason. Turns that wait for their calls get the refusals."""
        await asyncio.gather(*(self._postpone_one(row, refusal) for row, refusal in refused))

    async def _postpone_one(self, row: OutboxRow, refusal: NotPublished) -> None:
        """Postpone the row. A turn that waits for the call gets the refusal now, and its answer deletes the row."""
        delay = min(1000 * 2**row.attempts, MAX_RETRY_MS)
        if row.event_type == TOOL_CALL_REQUESTED:
            self._observer.refused(row.event_id, _readable_request(row), _kind_of(refusal), reason_of(refusal))
        try:
            await self._outbox.postpone(row, reason_of(refusal), delay)
        except StorageUnavailableError as error:
            self._outages.failed(error)
        else:
            self._outages.worked()
        if row.event_type == TOOL_CALL_REQUESTED and self._calls.enqueued(row.event_id, refusal):
            self._queue.refused(row)
        else:
            self._queue.look_again(row)


def rejected(row: OutboxRow, error: Exception) -> Unpublishable:
    """The refusal of a row that Redis or the contract does not accept."""
    log.error("outbox row %d (%s) cannot be published", row.seq, row.event_type, exc_info=error)
    return Unpublishable(f"{type(error).__name__}: {error}"[:500])


def check_sealed(row: OutboxRow) -> None:
    """Raises DecryptionError for a fact with a clear text: `dialog-engine encrypt` has encrypted those that waited."""
    fact = msgspec.json.decode(row.payload, type=TurnFinished)
    if any(text and not key_of(text) for text in (fact.user_message, fact.assistant_message)):
        raise DecryptionError("the fact is not encrypted, and everything was: somebody without a key wrote it")


def _readable_request(row: OutboxRow) -> ToolCallRequested | None:
    try:
        return decode_request(row.payload)
    except UnsupportedEventError:
        return None


def _kind_of(refusal: NotPublished) -> str:
    """The kind of a refusal, for metrics."""
    match refusal:
        case Overloaded():
            return "overloaded"
        case Conflict():
            return "conflict"
        case Unpublishable():
            return "error"
