"""The export of a subject: a line of JSON per session, written in pieces, because a session may be of any size."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from dialog_engine.chat.archive import Transcript
from dialog_engine.http import views


async def as_lines(parts: AsyncGenerator[Transcript]) -> AsyncGenerator[bytes]:
    """The lines of sessions whose pages follow each other, oldest messages first. `more` is false in the last page of a
    session."""
    turns: dict[str, bytes] | None = None
    async with aclosing(parts):
        async for part in parts:
            separator = b","
            if turns is None:
                turns, separator = {}, b""
                yield msgspec.json.encode(views.session_head(part.session))[:-1] + b',"messages":['
            for message in part.page.messages:
                yield separator + msgspec.json.encode(views.message(message))
                separator = b","
            turns |= {each.turn_id: msgspec.json.encode(views.turn(each)) for each in part.turns}
            if not part.page.more:
                yield b'],"turns":[' + b",".join(turns.values()) + b"]}\n"
                turns = None
