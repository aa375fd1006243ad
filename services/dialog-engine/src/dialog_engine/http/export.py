"""The export of a subject: a line of JSON per session, written in pieces, because a session may be of any size; then
lines of what the subject has used."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from dialog_engine.chat.archive import Archive, MessageRecord, Transcript
from dialog_engine.chat.conversations import Conversations
from dialog_engine.consumption.usage import NO_PRICES, UsageReport, Wanted, as_json
from dialog_engine.errors import SessionNotFoundError
from dialog_engine.http import turn_views, views
from dialog_engine.model import MediaOfUser
from plugins_contract.outcomes import MediaBlock

USAGE_ROWS = 1000
"""How many rows of usage are in a line."""


async def as_lines(
    archive: Archive, conversations: Conversations, subject: str, parts: AsyncGenerator[Transcript]
) -> AsyncGenerator[bytes]:
    """The lines of the subject's sessions. Their pages follow each other, and the last page of each has no `more`.

    A line ends with the images, sounds and files of the session, and with the whole texts of results that are shortened
    in `messages`. One at a time of these is in memory."""
    turns: dict[str, bytes] | None = None
    media: list[tuple[str, tuple[str, int]]] = []
    images: list[MediaOfUser] = []
    shortened: list[tuple[str, str]] = []
    async with aclosing(parts):
        async for part in parts:
            separator = b","
            if turns is None:
                turns, media, images, shortened, separator = {}, [], [], [], b""
                yield msgspec.json.encode(views.session_head(part.session))[:-1] + b',"messages":['
            for message in part.page.messages:
                yield separator + msgspec.json.encode(views.message(message) | _brought_with(message))
                separator = b","
                images += _images_of(message)
                media += [(message.turn_id, each) for each in _media_of(message)]
                shortened += [
                    (message.turn_id, call.call.correlation_id)
                    for call in message.calls
                    if call.outcome and call.outcome.truncated
                ]
            turns |= {each.turn_id: msgspec.json.encode(turn_views.turn(each)) for each in part.turns}
            if not part.page.more:
                yield b'],"turns":[' + b",".join(turns.values()) + b'],"media":['
                separator = b""
                for turn_id, (correlation_id, number) in media:
                    if block := await archive.media(subject, turn_id, correlation_id, number):
                        url = views.media_url(turn_id, correlation_id, number)
                        yield separator + msgspec.json.encode(
                            {"url": url, "mimeType": block.mime_type, "data": block.data}
                        )
                        separator = b","
                for image in images:
                    if block := await archive.image(image.turn_id, image.number):
                        shown = {"url": views.image_of_user(image)["url"], "mimeType": block.mime_type}
                        yield separator + msgspec.json.encode(shown | {"data": block.data})
                        separator = b","
                yield b'],"wholeTexts":['
                separator = b""
                for turn_id, correlation_id in shortened:
                    if whole := await archive.whole(subject, turn_id, correlation_id):
                        text = {"correlationId": correlation_id, "text": whole.user_text}
                        yield separator + msgspec.json.encode(text)
                        separator = b","
                waiting = [turn_views.waiting(each) for each in part.waiting]
                yield b'],"waiting":' + msgspec.json.encode(waiting)
                yield await _as_conversation(conversations, subject, part.session.session_id) + b"}\n"
                turns = None


async def usage_lines(report: UsageReport, subject: str) -> AsyncGenerator[bytes]:
    """What the subject has used by day, USAGE_ROWS to a line; no line when it is nothing. Prices are the operators'."""
    after = None
    while rows := await report.page(Wanted.ever(subject), after, USAGE_ROWS):
        shown = [as_json(each, NO_PRICES) for each in rows]
        counts = [{name: value for name, value in row.items() if name not in ("cost", "currency")} for row in shown]
        yield msgspec.json.encode({"usage": counts}) + b"\n"
        after = rows[-1].key


async def joined(*parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """One after the other."""
    for part in parts:
        async with aclosing(part):
            async for each in part:
                yield each


async def begun(lines: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The same, with the first piece made already: what fails until then can still be answered with its status."""
    first = await anext(lines, b"")

    async def all_of_them() -> AsyncGenerator[bytes]:
        async with aclosing(lines):
            yield first
            async for each in lines:
                yield each

    return all_of_them()


async def _as_conversation(conversations: Conversations, subject: str, session_id: str) -> bytes:
    """The fields with what clients have said of a session, and added to it before a question has come; none, where
    there is nothing, or the session was deleted meanwhile."""
    try:
        metadata = (await conversations.find(subject, session_id)).metadata
    except SessionNotFoundError:
        return b""
    added = [each.message for each in await conversations.waiting(session_id) if each.message]
    shown = [{"role": each.role, "content": each.content, "images": each.media} for each in added]
    fields = {name: each for name, each in (("metadata", metadata), ("added", shown)) if each}
    return b"," + msgspec.json.encode(fields)[1:-1] if fields else b""


def _images_of(message: MessageRecord) -> list[MediaOfUser]:
    return [each for each in message.brought.all_media() if isinstance(each, MediaOfUser)]


def _brought_with(message: MessageRecord) -> dict[str, Any]:
    """What came with the message beside its text, without images."""
    brought = message.brought
    said = [{"role": each.role, "content": each.content, "calls": each.calls} for each in brought.said]
    parts = {"instructions": brought.instructions, "before": said, "clientTools": brought.tools}
    return {name: part for name, part in parts.items() if part}


def _media_of(message: MessageRecord) -> list[tuple[str, int]]:
    return [
        (call.call.correlation_id, number)
        for call in message.calls
        for number, block in enumerate(call.outcome.content if call.outcome else ())
        if isinstance(block, MediaBlock)
    ]
