"""Which Host headers name this machine, and how a body is bounded."""

from starlette.types import Message

from dialog_engine.config.http import is_own_name
from dialog_engine.http.requests import BodyLimit

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


async def test_a_body_that_announces_too_many_bytes_is_refused_unread() -> None:
    sent: list[Message] = []

    async def unread(*_: object) -> None:
        raise AssertionError

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    request = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-length", b"11")]}
    await BodyLimit(unread, 10)(request, receive, send)
    assert sent[0]["status"] == 413
    assert b"BODY_TOO_LARGE" in sent[1]["body"]
