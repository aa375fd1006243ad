"""The events of a turn as its readers get them: from its log, and where that has a hole, from what was stored."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.archive import MessageRecord, TurnRecord
from dialog_engine.chat.events import DONE, START, Batch, Cursor, Frame, LogGoneError
from dialog_engine.chat.replay import replay, replay_ended
from dialog_engine.http.services import Services
from dialog_engine.model import Reset, TurnEvent

RETOLD_EPOCH = 1_000_000_000
"""The epoch of events that are made anew when a turn has ended, for a new reader; for others it is the next one.

Both come after every epoch that the turn lived through.
"""
END_SECONDS = 1.0
"""How long the end of a turn may take from the database into the log."""
LOOK_SECONDS = 0.05
LOST = "a part of the turn's log is lost"


async def of_running(engine: Services, subject: str, turn_id: str, after: Cursor) -> AsyncGenerator[Batch]:
    """What comes after `after` in a turn that runs, here or elsewhere; an empty batch when nothing came for a while."""
    place = str(after)
    while True:
        try:
            async with aclosing(engine.frames.follow(turn_id, Cursor.parse(place))) as batches:
                async for batch in batches:
                    if not batch and engine.frames.running(turn_id) is None:
                        # Its owner may have died between the commit of the end and the log's.
                        record = await engine.archive.turn(subject, turn_id)
                        if record.status != "running":
                            async for rest in of_ended(engine, subject, record, Cursor.parse(place)):
                                yield rest
                            return
                    yield batch
                    place = batch[-1].id if batch else place
            return
        except LogGoneError:
            newest = await engine.frames.newest(turn_id)
            if newest is None or Cursor.parse(newest.id) <= Cursor.parse(place):
                return  # the client comes back
        # First the place, then what is stored: nothing that was said up to that place is left out.
        record = await engine.archive.turn(subject, turn_id)
        committed = replay(turn_id, await _messages(engine, subject, record))
        yield [_frame(newest.id, Reset(LOST, committed))]
        place = newest.id


async def of_ended(engine: Services, subject: str, record: TurnRecord, after: Cursor) -> AsyncGenerator[Batch]:
    """What is left to tell of a turn that has ended: nothing at all to who has seen its end."""
    if after.epoch < RETOLD_EPOCH:
        try:
            # The end of a turn is committed first, and told after that.
            await _come_to_its_end(engine, record.turn_id)
            async with aclosing(engine.frames.kept(record.turn_id, after)) as batches:
                async for batch in batches:
                    yield batch
                    after = Cursor.parse(batch[-1].id)
            newest = await engine.frames.newest(record.turn_id)
            if newest is not None and newest.name == DONE:
                return
        except LogGoneError:
            pass
    if rest := _retold(record, await _messages(engine, subject, record), after):
        yield rest


async def _come_to_its_end(engine: Services, turn_id: str) -> None:
    """Wait, bounded, for a log that is there to get its last event."""
    for _ in range(round(END_SECONDS / LOOK_SECONDS)):
        newest = await engine.frames.newest(turn_id)
        if newest is None or newest.name == DONE:
            return
        await asyncio.sleep(LOOK_SECONDS)


async def _messages(engine: Services, subject: str, record: TurnRecord) -> Sequence[MessageRecord]:
    _, messages = await engine.archive.transcript(subject, record.session_id)
    return messages


def _retold(record: TurnRecord, messages: Sequence[MessageRecord], after: Cursor) -> Batch:
    """What a reader at `after` still needs of an ended turn, from what was stored of it.

    One who has read a part of its log is told to forget that.
    """
    to_a_new_reader = after == START or after.epoch == RETOLD_EPOCH
    epoch = RETOLD_EPOCH if to_a_new_reader else RETOLD_EPOCH + 1
    anew = replay_ended(record, messages, reset="" if to_a_new_reader else LOST)
    places = (Cursor(epoch, seq) for seq in range(1, len(anew) + 1))
    return [_frame(str(place), event) for place, event in zip(places, anew, strict=True) if place > after]


def _frame(event_id: str, event: TurnEvent) -> Frame:
    name, data = events.encode(event)
    return Frame(event_id, name, msgspec.json.encode(data).decode())
