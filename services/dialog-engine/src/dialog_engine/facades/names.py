"""Sessions by the names that clients have chosen for them."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from dialog_engine.chat.requests import SessionName, StartingRequest
from dialog_engine.errors import SessionNamedError
from dialog_engine.http.services import Services

T = TypeVar("T")
Send = Callable[[str | None, StartingRequest], Awaitable[T]]
"""Sends a message to a session, or, for None, to one that begins with it."""


async def in_named(
    name: SessionName | None, engine: Services, subject: str, starting: StartingRequest, send: Send[T]
) -> T:
    """Send a message to the session of that name, which begins with the message if there is none: one that is refused
    leaves no session. Where another request begins the session meanwhile, the message is sent to that one. Without a
    name it begins a session in any case."""
    if name is None:
        return await send(None, starting)
    starting = replace(starting, session_name=name)
    while True:
        with suppress(SessionNamedError):
            return await send(await engine.sessions.find_named(subject, name), starting)
