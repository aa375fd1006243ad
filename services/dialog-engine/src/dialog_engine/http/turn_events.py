"""The events of a turn for its clients: from the turn's log, and from the database where the log has a gap."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.archive import MessageRecord, TurnRecord
from dialog_engine.chat.events import DONE, START, Batch, Cursor, Frame, LogGoneError
from dialog_engine.chat.replay import replay, replay_ended
from dialog_engine.http.responses import LARGE_BYTES
from dialog_engine.http.services import Services
from dialog_engine.model import Reset, ResetReason, TurnEvent

REBUILT_EPOCH = 1_000_000_000
"""The epoch of events rebuilt from the database, for a new reader; for other readers it is the next one.

Both come after every epoch of a running turn.
"""
END_SECONDS = 1.0
"""How long the log of a turn may lack its last event after the end of the turn was committed."""
POLL_SECONDS = 0.05


async def of_running(engine: Services, subject: str, turn_id: str, after: Cursor) -> AsyncGenerator[Batch]:
    """The events after `after` of a turn that runs, on this engine or another; an empty batch when there are none.

    The stream ends early when neither the log nor the database can continue it: the client reconnects.
    """
    last_id = str(after)
    while True:
        try:
            async with aclosing(engine.frames.follow(turn_id, Cursor.parse(last_id))) as batches:
                async for batch in batches:
                    if not batch and engine.frames.running(turn_id) is None:
                        # Its engine may have died after the end was committed and before the log had it.
                        record = await engine.archive.turn(subject, turn_id)
                        if record.status != "running":
                            async for rest in of_ended(engine, record, Cursor.parse(last_id)):
                                async with _place(engine, subject, rest):
                                    yield rest
                            return
                    async with _place(engine, subject, batch):
                        yield batch
                    last_id = batch[-1].id if batch else last_id
            return
        except LogGoneError:
            newest = await engine.frames.newest(turn_id)
            if newest is None or Cursor.parse(newest.id) <= Cursor.parse(last_id):
                return
        # The id is read before the database: every event up to it is in what the database returns.
        record = await engine.archive.turn(subject, turn_id)
        committed = replay(turn_id, await engine.archive.turn_messages(record.turn_id))
        reset = [_frame(newest.id, Reset(ResetReason.LOG_LOST, committed))]
        async with _place(engine, subject, reset):
            yield reset
        last_id = newest.id


async def of_ended(engine: Services, record: TurnRecord, after: Cursor) -> AsyncGenerator[Batch]:
    """The events after `after` of a turn that has ended; no batch at all when its last event was seen."""
    if after.epoch < REBUILT_EPOCH:
        last: Frame | None = None
        with suppress(LogGoneError):
            # The end of a turn is committed first and logged after that.
            await _last_event_logged(engine, record.turn_id)
            async with aclosing(engine.frames.kept(record.turn_id, after)) as batches:
                async for batch in batches:
                    yield batch
                    last = batch[-1]
                    after = Cursor.parse(last.id)
            # An end that was read is not looked up again: Redis may be unavailable by now.
            last = last or await engine.frames.newest(record.turn_id)
        if last is not None and last.name == DONE:
            return
    if rest := _rebuilt(record, await engine.archive.turn_messages(record.turn_id), after):
        yield rest


_NO_PLACE = nullcontext()


def _place(engine: Services, subject: str, batch: Batch) -> AbstractAsyncContextManager[None]:
    """A place for a large batch until it is sent. Readers of a turn share its batches; what is sent is a copy."""
    large = sum(len(frame.data) for frame in batch) > LARGE_BYTES
    return engine.large_answers.place(subject) if large else _NO_PLACE


async def _last_event_logged(engine: Services, turn_id: str) -> None:
    """Wait, at most END_SECONDS, until an existing log has its last event."""
    for _ in range(round(END_SECONDS / POLL_SECONDS)):
        newest = await engine.frames.newest(turn_id)
        if newest is None or newest.name == DONE:
            return
        await asyncio.sleep(POLL_SECONDS)


def _rebuilt(record: TurnRecord, messages: Sequence[MessageRecord], after: Cursor) -> Batch:
    """The events that a reader at `after` lacks of an ended turn, rebuilt from what the database has.

    A reader that has seen a part of the turn's log gets a reset first.
    """
    new_reader = after == START or after.epoch == REBUILT_EPOCH
    epoch = REBUILT_EPOCH if new_reader else REBUILT_EPOCH + 1
    rebuilt = replay_ended(record, messages, reset="" if new_reader else ResetReason.LOG_LOST)
    ids = (Cursor(epoch, seq) for seq in range(1, len(rebuilt) + 1))
    return [_frame(str(each), event) for each, event in zip(ids, rebuilt, strict=True) if each > after]


def _frame(event_id: str, event: TurnEvent) -> Frame:
    name, data = events.encode(event)
    return Frame(event_id, name, msgspec.json.encode(data).decode())
