"""Which Host headers name this machine, and how a body is bounded."""

from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from dialog_engine.config.http import is_own_name
from dialog_engine.http.requests import BodyLimit

pytestmark = pytest.mark.anyio


OTHER_NAMES = [
    "", ":80", "example.org", "10.0.0.1", "0.0.0.0", "[::]", "[::2]:80", "::1", "localhost:80:80",
    "localhost:x", "[::1]x", "x[::1]", "127.0.0.1@example.org", "localhost.", "127.1",
]  # fmt: skip


def test_loopback_names_are_own_names() -> None:
    for host in ("localhost", "LocalHost:80", "127.0.0.1", "127.0.0.2:9", "[::1]", "[::1]:8000"):
        assert is_own_name(host), host


def test_other_names_are_not_own_names() -> None:
    for host in OTHER_NAMES:
        assert not is_own_name(host), host


async def serve(app: Any, *chunks: bytes, announced: int | None = None) -> tuple[int, bytes]:
    """The status and the body of the answer to a body in these chunks."""
    messages: list[Message] = [
        {"type": "http.request", "body": chunk, "more_body": n < len(chunks) - 1} for n, chunk in enumerate(chunks)
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-length", str(announced).encode())] if announced is not None else []
    await app({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads everything; half a body makes it fail in its own way."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client went away")
        body += message["body"]
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def test_a_body_up_to_the_limit_is_accepted() -> None:
    assert await serve(BodyLimit(echo, 10), b"12345", b"67890") == (200, b"1234567890")
    assert await serve(BodyLimit(echo, 10), b"1234567890", announced=10) == (200, b"1234567890")


async def test_a_body_that_announces_too_many_bytes_is_refused_unread() -> None:
    status, body = await serve(BodyLimit(echo, 10), announced=11)
    assert status == 413
    assert b"BODY_TOO_LARGE" in body


async def test_a_body_that_announces_too_few_bytes_is_refused() -> None:
    for announced in (None, 5):
        with pytest.raises(ConnectionError):
            await serve(BodyLimit(echo, 10), b"12345", b"678901", announced=announced)


async def tolerant(scope: Scope, receive: Receive, send: Send) -> None:
    """Makes an answer of its own of half a body, as frameworks do."""
    await receive()
    await receive()
    await send({"type": "http.response.start", "status": 400, "headers": []})
    await send({"type": "http.response.body", "body": b"what?"})


async def test_the_applications_answer_to_half_a_body_is_replaced_by_413() -> None:
    status, body = await serve(BodyLimit(tolerant, 10), b"12345", b"678901")
    assert status == 413
    assert b"what?" not in body
