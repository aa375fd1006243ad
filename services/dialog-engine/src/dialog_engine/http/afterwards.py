"""Streams that outlive their request: what the framework holds for a request is let go when its stream begins."""

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

Work = Callable[[Send], Awaitable[None]]
"""The rest of a response, given how to send it."""

_WORK = "callstream.afterwards"


class Afterwards:
    """ASGI, around everything else: does what a response left to be done when all that made it has returned.

    Told from inside, a stream would hold for as long as it lasts what its request needed for milliseconds: a dozen
    frames of routers and middlewares, exit stacks, the request, its dependencies. That is as much again as the client.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left: list[Work] = []
        # A copy: the server keeps its scope for as long as the connection, and routers put much into theirs.
        await self._app({**scope, _WORK: left}, receive, send)
        if left:
            scope["headers"].clear()  # the server, too, would keep them for as long as the stream lasts
        for work in left:
            await work(send)


def afterwards(scope: Scope, work: Work) -> None:
    """Leave `work` to be done when the request of this scope is done with; the head is sent already.

    What it raises goes to the server, which logs it and ends the connection: no handler of errors is there any more.
    """
    scope[_WORK].append(work)
