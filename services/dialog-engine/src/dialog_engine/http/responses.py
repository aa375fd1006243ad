"""What every answer has, whoever makes it: an id, and header fields that keep it from being guessed at or kept."""

import re
from collections.abc import Awaitable, Iterable, Mapping

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callstream_runtime.client_waits import ClientWait, client_wait
from callstream_runtime.tracing import set_log_ids
from plugins_contract.messages import new_id

REQUEST_ID = "x-request-id"
_CLIENTS_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""What a client may call its own request. It is sent back and logged, and used for nothing else."""
PIECE_BYTES = 8_192
"""How much of a body is given to the server at once: a stranger who does not read a file of the page holds as much."""


class Responses:
    """Browsers must not guess a response's type, share it with other sites, or keep data.

    Each response, and each line that is logged for its request, has an id: the client's own, or a new one.

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
        own_id = request_id(scope["headers"])
        set_log_ids({"requestId": own_id})

        def sent(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                wait.over = True
                _complete(message, {REQUEST_ID: own_id} | scope.get("state", {}).get("about", {}))
            elif len(message.get("body", b"")) > PIECE_BYTES:
                return _in_pieces(message, send)
            return send(message)

        return self._app(scope, receive, sent)


def header(scope: Scope, name: bytes) -> bytes:
    """The value of the first header field of the request with this name, or b""."""
    return field(scope["headers"], name)


def field(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The value of the first of these header fields with this name, or b""."""
    return next((value for each, value in headers if each == name), b"")


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The id of a request that has these header fields: the client's own if it may be sent back, or a new one."""
    sent = field(headers, REQUEST_ID.encode()).decode("latin-1")
    return sent if _CLIENTS_ID.fullmatch(sent) else new_id()


def about_turn(request: Request, turn_id: str, session_id: str) -> None:
    """The response, also one that is an error, names this turn and its session, which the sender may know."""
    request.state.about = {"X-Turn-Id": turn_id, "X-Session-Id": session_id}


def about_session(request: Request, session_id: str) -> None:
    """The response, also one that is an error, names this session, which the sender may know."""
    request.state.about = {"X-Session-Id": session_id}


def _complete(head: Message, ids: Mapping[str, str]) -> None:
    headers = MutableHeaders(scope=head)
    headers.update(ids)
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
    headers.setdefault("Cache-Control", "no-store")


async def _in_pieces(message: Message, send: Send) -> None:
    body = memoryview(message["body"])  # a piece that waits is no copy
    for at in range(0, len(body), PIECE_BYTES):
        more = message.get("more_body", False) or at + PIECE_BYTES < len(body)
        await send({"type": message["type"], "body": body[at : at + PIECE_BYTES], "more_body": more})
