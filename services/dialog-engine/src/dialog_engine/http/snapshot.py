"""The events of an ended turn whose log is gone, made anew from what was stored of it."""

from collections.abc import AsyncGenerator, Iterable

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.archive import MessageRecord, SessionRecord, TurnRecord
from dialog_engine.chat.frames import Frame
from dialog_engine.model import (
    AssistantMessage,
    Done,
    DoneReason,
    MessageFinished,
    TurnEvent,
    TurnStarted,
)


async def frames(turn: TurnRecord, session: SessionRecord, messages: Iterable[MessageRecord]) -> AsyncGenerator[Frame]:
    """The finished messages of `turn` and its end; the steps in between are not kept."""
    story: list[TurnEvent] = [TurnStarted(turn.turn_id, session.session_id)]
    story += [
        MessageFinished(message.message_id, AssistantMessage(message.content, tuple(c.call for c in message.calls)))
        for message in messages
        if message.turn_id == turn.turn_id and message.role == "assistant"
    ]
    if turn.failure is not None:
        story.append(turn.failure)
    story.append(Done(turn.turn_id, DoneReason(turn.reason or DoneReason.ERROR), turn.usage, turn.ttft_ms))
    for number, event in enumerate(story, 1):
        name, data = events.encode(event)
        yield Frame(f"0-{number}", name, msgspec.json.encode(data).decode())
