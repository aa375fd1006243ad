"""What all routes of the API have in common: HEAD, the methods of a path, and its query parameters."""

from collections.abc import Iterator
from http import HTTPStatus

from fastapi import Request
from fastapi.dependencies.models import Dependant
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dialog_engine.http.problems import ProblemError

METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
MAX_NAMED = 10
MAX_NAME = 100
"""How many unknown parameters an error names, and how many characters of each."""


class HeadAsGet:
    """ASGI middleware: HEAD is answered as GET is, and the server leaves out the body. An event stream ends at once."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = False

        async def ended() -> Message:
            return {"type": "http.disconnect"} if answered else await receive()

        async def note(message: Message) -> None:
            nonlocal answered
            await send(message)
            answered = True

        await self._app(dict(scope, method="GET"), ended, note)


def allowed(request: Request) -> str:
    """The methods of the path of the request, as the field `Allow` names them."""

    def has(method: str) -> bool:
        scope = dict(request.scope, method=method)
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    found = [method for method in METHODS if has(method)]
    return ", ".join([*found, *(["HEAD"] if "GET" in found else [])])


async def known_parameters(request: Request) -> None:
    """Dependency of every route of the API: refuses query parameters that it does not have, as unknown fields are.

    Raises:
        ProblemError: there are some; each is named, and so are those of the route.
    """
    if not request.query_params:
        return
    known = [*_parameters(request.scope["route"].dependant)]
    unknown = [name[:MAX_NAME] for name in dict.fromkeys(request.query_params) if name not in known][:MAX_NAMED]
    if not unknown:
        return
    hint = f"the known ones are {', '.join(known)}" if known else "this path has none"
    message = f"is not a known query parameter; leave it out ({hint})"
    errors = [{"field": name, "message": message} for name in unknown]
    detail = "; ".join(f"{name}: {message}" for name in unknown)
    raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", detail, errors=errors)


def _parameters(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for each in dependant.dependencies:
        yield from _parameters(each)
