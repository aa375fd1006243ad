"""What of a session is sent to models: its newest whole turns, which are read from the end and no further."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dialog_engine.chat.archive import MessageRecord, Page
from dialog_engine.chat.ports import History
from dialog_engine.context import count_of_said, newest_turns, tokens_of_message, within_sight
from dialog_engine.model import AssistantMessage, MediaInStore, MediaOfUser, Message, ToolMessage, UserMessage
from dialog_engine.tool_calls.results.texts import tool_message

LEAST_BYTES, MOST_BYTES = 64_000, 1_000_000
"""Bytes that are read at once."""
BYTES_PER_TOKEN = 8
"""More than a token takes in the store, where texts are JSON or sealed: mostly one page has all that is sent."""


@dataclass(frozen=True, slots=True)
class Memory:
    """How much of a session is sent to any model. Of this, each model is sent what fits its context."""

    max_messages: int
    max_tokens: float


async def newest_said(
    history: History, session_id: str, turn_id: str, memory: Memory
) -> tuple[tuple[Message, ...], int]:
    """The newest turns of the path to a turn within `memory`, the last one in any case, and how many older messages of
    the user and the model that path has.

    Raises:
        StorageUnavailableError: they cannot be read now.
    """
    size = int(min(max(BYTES_PER_TOKEN * memory.max_tokens, LEAST_BYTES), MOST_BYTES))
    records: tuple[MessageRecord, ...] = ()
    said: Sequence[Message] = ()
    page = Page((), more=True)
    while page.more and not _reach(said, memory):
        before = records[0].message_id if records else None
        page = await history.page(session_id, turn_id, before=before, limit=memory.max_messages + 1, size=size)
        records = (*page.messages, *records)
        said = messages_of(records)
    kept = recent(said, memory)
    kept = tuple([await _with_media(history, each) for each in kept])
    return kept, page.before + count_of_said(said) - count_of_said(kept)


def recent(said: Sequence[Message], memory: Memory) -> tuple[Message, ...]:
    """The newest turns within `memory`, with the newest images and sounds."""
    return newest_turns(within_sight(said), max_messages=memory.max_messages, max_tokens=memory.max_tokens)


async def _with_media(history: History, message: Message) -> Message:
    """The message with its images and sounds, which are read one by one: a few per request."""
    if not isinstance(message, ToolMessage | UserMessage) or not message.media:
        return message
    media = [
        await history.fetched(each) if isinstance(each, MediaInStore | MediaOfUser) else each for each in message.media
    ]
    return replace(message, media=tuple(media))


def messages_of(records: Iterable[MessageRecord]) -> list[Message]:
    """Stored messages as a model reads them. A tool call without an outcome has no result."""
    messages: list[Message] = []
    for record in records:
        if record.role == "user":
            messages.extend(record.brought.messages(record.content))
            continue
        calls = tuple(each.call for each in record.calls)
        messages.append(AssistantMessage(record.content, calls, record.reasoning, record.interrupted))
        messages.extend(
            tool_message(each.call, each.outcome, each.approval.edited if each.approval else None)
            for each in record.calls
            if each.outcome is not None
        )
    return messages


def _reach(said: Sequence[Message], memory: Memory) -> bool:
    """Whether the last turn is there, and nothing older than these messages can be sent with it."""
    return any(isinstance(each, UserMessage) for each in said) and (
        len(said) > memory.max_messages or sum(map(tokens_of_message, said)) > memory.max_tokens
    )
