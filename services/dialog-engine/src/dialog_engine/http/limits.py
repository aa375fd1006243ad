"""A bound on what a request may send, before anything reads it."""

from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dialog_engine.http.problems import problem

MAX_BODY_BYTES = 1_000_000


class BodyTooLargeError(Exception):
    """The body went past the limit while it was read."""


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
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        started = False
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_bytes:
                raise BodyTooLargeError
            return message

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, limited, noted)
        except BodyTooLargeError:
            if started:
                raise
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BODY_TOO_LARGE", f"the body may have {self._max_bytes} bytes at most"
        )
        await response(scope, receive, send)
