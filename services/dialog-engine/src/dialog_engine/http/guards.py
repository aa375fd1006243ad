"""Which requests are served: of a known sender, under a name of this machine, up to a size, with known parameters."""

from collections.abc import Awaitable, Iterator
from functools import lru_cache
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dialog_engine.config.http import is_loopback
from dialog_engine.errors import EngineError, ForbiddenError, IdentityProviderError
from dialog_engine.http.admission import Admission
from dialog_engine.http.problems import Problem, ProblemError, note, problem, problem_of
from dialog_engine.identity.principal import LOCAL, Principal

MAX_BODY_BYTES = 1_000_000


async def current_principal(request: Request) -> Principal:
    """The sender of `request`, as Admitted has found it. (FastAPI would run a plain function in a thread.)"""
    return request.state.principal


async def current_subject(request: Request) -> str:
    """The subject of `request`."""
    return request.state.principal.subject


Sender = Annotated[Principal, Depends(current_principal)]
Subject = Annotated[str, Depends(current_subject)]


class Admitted:
    """ASGI middleware: finds out who makes a request and whether they may, before anything of its body is read.

    Without an `admission` every sender may do everything.
    """

    def __init__(self, app: ASGIApp, admission: Admission | None) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            try:
                principal = await self._admission.admit(Request(scope)) if self._admission else LOCAL
            except EngineError as error:
                subject = error.subject if isinstance(error, ForbiddenError) else ""
                await note(Request(scope), problem_of(error), subject)(scope, receive, send)
                return
            # Not in the scope itself, which would grow for as long as the request is answered.
            state = scope.setdefault("state", {})
            state["principal"], state["admission"] = principal, self._admission
        await self._app(scope, receive, send)


async def still_admitted(scope: Scope) -> bool:
    """Whether the sender of a request that was admitted would be admitted now, too."""
    admission: Admission | None = scope["state"].get("admission")
    try:
        if admission:
            await admission.admit(Request(scope))
    except IdentityProviderError:
        return True
    except EngineError:
        return False
    return True


class BodyLimit:
    """ASGI middleware: answers 413 to a body that is larger than the limit, by its header or by its bytes."""

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

        def passed(message: Message) -> Awaitable[None]:
            nonlocal started
            # What the application answers to half a body is discarded: the client gets the 413.
            if refused:
                return _discarded()
            started = True
            return send(message)

        try:
            await self._app(scope, limited, passed)
        finally:
            if refused:
                await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = f"the body is too large: at most {self._max_bytes} bytes are allowed"
        errors = {"errors": [{"field": "body", "message": detail}]}
        response = problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BODY_TOO_LARGE", detail, errors)
        await note(Request(scope), response)(scope, receive, send)


async def _discarded() -> None:
    """In place of sending."""


class LoopbackNames:
    """ASGI middleware: serves only requests to a loopback name of this machine, and from no page but the engine's own.

    Without a sign-in a foreign page must not reach the engine, neither under a name that it controls (DNS rebinding)
    nor blindly (cross-site request forgery): browsers send the page's origin with every POST and DELETE.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request. (No coroutine of its own: that would stay for as long as a stream.)"""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        return (note(Request(scope), refusal) if refusal else self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Problem | None:
        if not is_own_name(_header(scope, b"host").decode("latin-1")):
            detail = "without API keys and OIDC_ISSUER requests are served at localhost, 127.0.0.1 and [::1] only"
            errors = {"errors": [{"field": "Host", "message": detail}]}
            return problem(HTTPStatus.MISDIRECTED_REQUEST, "HOST_NOT_ALLOWED", detail, errors)
        origin = _header(scope, b"origin").decode("latin-1")
        if origin and origin.partition("://")[2].lower() != _header(scope, b"host").decode("latin-1").lower():
            # Other programs of this machine have loopback names too, on other ports.
            detail = "without API keys and OIDC_ISSUER only requests of the engine's own page are served"
            errors = {"errors": [{"field": "Origin", "message": detail}]}
            return problem(HTTPStatus.FORBIDDEN, "ORIGIN_NOT_ALLOWED", detail, errors)
        return None


def _header(scope: Scope, name: bytes) -> bytes:
    """The value of a header, or b""."""
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
