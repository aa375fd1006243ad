"""Bounds on requests, held before anything reads them: how much they may send, by which name, and from whose page."""

from functools import lru_cache
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dialog_engine.config import is_loopback
from dialog_engine.http.problems import problem

MAX_BODY_BYTES = 1_000_000


class BodyLimit:
    """ASGI middleware: 413 for a body that says it is, or turns out to be, too large."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = _header(scope, b"content-length") or b"0"
        if announced.isdigit() and int(announced) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        started = refused = False
        read = 0

        async def limited() -> Message:
            nonlocal read, refused
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_bytes and not started:
                refused = True
                return {"type": "http.disconnect"}
            return message

        async def passed(message: Message) -> None:
            nonlocal started
            # Whatever is made of half a body, the sender hears that it was too large.
            if not refused:
                started = True
                await send(message)

        try:
            await self._app(scope, limited, passed)
        finally:
            if refused:
                await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = f"the body may have {self._max_bytes} bytes at most"
        errors = {"errors": [{"field": "body", "message": detail}]}
        response = problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BODY_TOO_LARGE", detail, errors)
        await response(scope, receive, send)


class LoopbackNames:
    """ASGI middleware: only requests that were sent to this machine by its own names, and by no page from elsewhere.

    Without keys, a page of somebody else's must not be able to reach the engine, under a name that it controls (DNS
    rebinding) or blindly (cross-site request forgery): browsers name the page of every POST and DELETE in `Origin`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        if not is_own_name(_header(scope, b"host").decode("latin-1")):
            detail = "without API_KEYS requests are served at localhost, 127.0.0.1 and [::1] only"
            errors = {"errors": [{"field": "Host", "message": detail}]}
            return problem(HTTPStatus.MISDIRECTED_REQUEST, "HOST_NOT_ALLOWED", detail, errors)
        origin = _header(scope, b"origin").decode("latin-1")
        if origin and not is_own_name(origin.partition("://")[2]):
            detail = (
                "without API_KEYS requests of pages are served if they come from localhost, 127.0.0.1 or [::1] only"
            )
            errors = {"errors": [{"field": "Origin", "message": detail}]}
            return problem(HTTPStatus.FORBIDDEN, "ORIGIN_NOT_ALLOWED", detail, errors)
        return None


def _header(scope: Scope, name: bytes) -> bytes:
    """The value of a header, or nothing: every request is asked for a few, so no mapping is made for it."""
    return next((value for each, value in scope["headers"] if each == name), b"")


@lru_cache(maxsize=100)
def is_own_name(host: str) -> bool:
    """Whether a Host header, or an origin without its scheme, names this machine's loopback, with a port or without."""
    name, bracket, port = host.lower().rpartition("]")
    if bracket:
        return name.startswith("[") and _is_port(port) and is_loopback(name[1:])
    name, _, port = host.lower().partition(":")
    return _is_port(f":{port}" if port else "") and is_loopback(name)


def _is_port(text: str) -> bool:
    return text == "" or (text.startswith(":") and text[1:].isdecimal())
