"""ASGI middleware: what applies to every response."""

from collections.abc import Awaitable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callstream_runtime.client_waits import ClientWait, client_wait

PIECE_BYTES = 8_192
"""How much of a body is given to the server at once: a stranger who does not read a file of the page holds as much."""
LARGE_BYTES = 65_536
"""What is larger is sent to a limited number of clients at a time."""


class Responses:
    """Browsers must not guess a response's type, share it with other sites, or keep data.

    The client of a request waits for its task, and those that it starts, until the head of the response is sent.
    A large body is sent in pieces, each when the client has read most of the one before: otherwise the response seems
    to be sent, and what holds it in memory is given up, while the server still has it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request. (No coroutine of its own: that would stay for as long as a stream.)"""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        client_wait.set(wait := ClientWait())

        def sent(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                wait.over = True
                _make_safe(message)
            elif len(message.get("body", b"")) > PIECE_BYTES:
                return _in_pieces(message, send)
            return send(message)

        return self._app(scope, receive, sent)


def _make_safe(head: Message) -> None:
    headers = MutableHeaders(scope=head)
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
    headers.setdefault("Cache-Control", "no-store")


async def _in_pieces(message: Message, send: Send) -> None:
    body = memoryview(message["body"])  # a piece that waits is no copy
    for at in range(0, len(body), PIECE_BYTES):
        more = message.get("more_body", False) or at + PIECE_BYTES < len(body)
        await send({"type": message["type"], "body": body[at : at + PIECE_BYTES], "more_body": more})
