"""ASGI middleware: marks what a client waits for, until its answer begins."""

from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callstream_runtime.client_waits import begin_client_wait


class WaitingClient:
    """Each request runs in a task of its own; its client waits until the head of the response is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request. (No coroutine of its own: that would stay for as long as a stream.)"""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        wait = begin_client_wait()

        def answered(message: Message) -> Awaitable[None]:
            wait.over = True
            return send(message)

        return self._app(scope, receive, answered)
