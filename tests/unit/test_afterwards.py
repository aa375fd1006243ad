"""What is done when the framework has returned: nothing of the request is kept for it."""

import weakref
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from dialog_engine.http.sse import Afterwards, afterwards

pytestmark = pytest.mark.anyio


class Held:
    """Something that a framework keeps while it answers."""


async def receive() -> Message:
    return {"type": "http.disconnect"}


async def send(_: Message) -> None:
    pass


async def test_what_was_held_for_the_request_is_let_go_before_the_work_begins() -> None:
    held: list[weakref.ref[Held]] = []
    seen: list[list[Held | None]] = []

    async def work(send: Send) -> None:
        seen.append([each() for each in held])

    async def framework(scope: Scope, receive: Receive, send: Send) -> None:
        in_a_frame, in_the_scope = Held(), Held()
        held.extend((weakref.ref(in_a_frame), weakref.ref(in_the_scope)))
        scope["framework.request"] = in_the_scope
        afterwards(scope, work)

    kept_by_the_server: dict[str, Any] = {"type": "http", "headers": [(b"cookie", b"much")]}
    await Afterwards(framework)(kept_by_the_server, receive, send)

    assert seen == [[None, None]]
    assert kept_by_the_server == {"type": "http", "headers": []}


async def test_what_the_work_raises_goes_to_the_server() -> None:
    async def work(send: Send) -> None:
        raise ZeroDivisionError

    async def framework(scope: Scope, receive: Receive, send: Send) -> None:
        afterwards(scope, work)

    with pytest.raises(ZeroDivisionError):
        await Afterwards(framework)({"type": "http", "headers": []}, receive, send)


async def test_what_is_left_by_a_request_that_failed_is_not_done() -> None:
    async def work(send: Send) -> None:
        raise AssertionError

    async def framework(scope: Scope, receive: Receive, send: Send) -> None:
        afterwards(scope, work)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Afterwards(framework)({"type": "http", "headers": []}, receive, send)
