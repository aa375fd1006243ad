"""What holds for every request: ASGI middleware, and the dependencies that routes are given."""

import re
from collections.abc import AsyncGenerator, Awaitable, Collection, Iterator, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Annotated

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dialog_engine.config.http import is_own_name
from dialog_engine.errors import EngineError, ForbiddenError
from dialog_engine.http.admission import Admission
from dialog_engine.http.problems import Problem, ProblemError, note, problem, problem_of
from dialog_engine.http.responses import about_turn, header
from dialog_engine.http.services import Services
from dialog_engine.identity.principal import LOCAL, Principal
from plugins_contract.large_results import MAX_BYTES, PATH

MAX_BODY_BYTES = 1_000_000
LARGE_BYTES = 65_536
"""What is larger is sent to a limited number of clients at a time."""
_JSON, _EVENTS = "application/json", "text/event-stream"


def wants_document(request: Request, stream: bool | None = None) -> bool:
    """Whether the client wants the answer of a turn as one document: by the field `stream`, otherwise by `Accept`,
    where that names JSON and no event stream."""
    accept = request.headers.get("accept", "")
    return not stream if stream is not None else _JSON in accept and _EVENTS not in accept


class Admitted:
    """Finds out who makes a request and whether they may, before anything of its body is read.

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


class BodyLimit:
    """Answers 413 to a body that is larger than the limit, by its header or by its bytes."""

    def __init__(
        self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES, larger: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """`larger` are the limits of paths that have others, and of all that begin with one that ends with `/`."""
        self._app = app
        self._max_bytes = max_bytes
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._most(scope["path"])
        announced = header(scope, b"content-length") or b"0"
        if announced.isdigit() and int(announced) > most:
            await self._refuse(scope, receive, send, most)
            return
        started = refused = False
        read = 0

        async def limited() -> Message:
            nonlocal read, refused
            message = await receive()
            read += len(message.get("body", b""))
            if read > most and not started:
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
                await self._refuse(scope, receive, send, most)

    def _most(self, path: str) -> int:
        if path.startswith(PATH):
            return MAX_BYTES
        groups = (limit for each, limit in self._larger.items() if each.endswith("/") and path.startswith(each))
        return self._larger.get(path) or next(groups, self._max_bytes)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        detail = f"the body is too large: at most {most} bytes are allowed"
        errors = {"errors": [{"field": "body", "message": detail}]}
        response = problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BODY_TOO_LARGE", detail, errors)
        await note(Request(scope), response)(scope, receive, send)


async def _discarded() -> None:
    """In place of sending."""


class LoopbackNames:
    """Serves only requests to a loopback name of this machine, and from no page but the engine's own and those on the
    listed `origins`.

    Without a sign-in a foreign page must not reach the engine, neither under a name that it controls (DNS rebinding)
    nor blindly (cross-site request forgery): browsers send the page's origin with every POST and DELETE.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str] = ()) -> None:
        self._app = app
        self._origins = origins

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request. (No coroutine of its own: that would stay for as long as a stream.)"""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        return (note(Request(scope), refusal) if refusal else self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Problem | None:
        if not is_own_name(header(scope, b"host").decode("latin-1")):
            detail = "without API keys and OIDC_ISSUER requests are served at localhost, 127.0.0.1 and [::1] only"
            errors = {"errors": [{"field": "Host", "message": detail}]}
            return problem(HTTPStatus.MISDIRECTED_REQUEST, "HOST_NOT_ALLOWED", detail, errors)
        origin = header(scope, b"origin").decode("latin-1")
        own = header(scope, b"host").decode("latin-1").lower()
        if origin and origin.partition("://")[2].lower() != own and origin not in self._origins:
            # Other programs of this machine have loopback names too, on other ports.
            detail = (
                "without API keys and OIDC_ISSUER only requests of the engine's own page, and of those in CORS_ORIGINS,"
                " are served"
            )
            errors = {"errors": [{"field": "Origin", "message": detail}]}
            return problem(HTTPStatus.FORBIDDEN, "ORIGIN_NOT_ALLOWED", detail, errors)
        return None


class HeadAsGet:
    """HEAD is answered as GET is, and the server leaves out the body. An event stream ends at once."""

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


# --- Dependencies ---


async def services_of(request: Request) -> Services:
    """The services, from the typed state of the lifespan. (FastAPI would run a plain function in a thread.)"""
    return request.state.services


Engine = Annotated[Services, Depends(services_of)]


async def current_principal(request: Request) -> Principal:
    """The sender of `request`, as Admitted has found it. (FastAPI would run a plain function in a thread.)"""
    return request.state.principal


async def current_subject(request: Request) -> str:
    """The subject of `request`."""
    return request.state.principal.subject


Sender = Annotated[Principal, Depends(current_principal)]
Subject = Annotated[str, Depends(current_subject)]


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent(request: Request) -> str | None:
    """The caller's trace (W3C Trace Context), if the header is well-formed."""
    value = request.headers.get("traceparent", "")
    return value if _TRACEPARENT.fullmatch(value) else None


async def large_answer(engine: Engine, subject: Subject, request: Request) -> AsyncGenerator[None]:
    """Dependency of routes whose answers may have megabytes: waits for a place, and holds it until the answer is sent.

    Raises:
        LimitExceededError: too many requests of the subject wait already.
        ProblemError: the client has gone meanwhile.
    """
    async with engine.large_answers.place(subject):
        if await request.is_disconnected():
            raise ProblemError(HTTPStatus.REQUEST_TIMEOUT, "CLIENT_GONE", "the client has not waited for its answer")
        yield


async def about_found(request: Request, engine: Services, subject: str, turn_id: str) -> None:
    """As `about_turn`, for a turn of which the route learns no session. Raises TurnNotFoundError."""
    about_turn(request, turn_id, (await engine.archive.turn(subject, turn_id)).session_id)


_NOT_FOUND = {
    "session_id": "SESSION_NOT_FOUND",
    "conversation_id": "SESSION_NOT_FOUND",
    "turn_id": "TURN_NOT_FOUND",
    "tool_call_id": "APPROVAL_NOT_FOUND",
    "correlation_id": "CONTENT_NOT_FOUND",
}
"""The code for an id that nothing has, by the parameter of the path."""


async def within_limits(engine: Engine, subject: Subject, request: Request) -> None:
    """Dependency of every route of the API: counts the request.

    Raises:
        LimitExceededError: the subject has sent too many.
        ProblemError: an id in the path has U+0000, which no id has and PostgreSQL cannot look for.
    """
    await engine.consumption.request(subject)
    for name, code in _NOT_FOUND.items():
        if "\0" in request.path_params.get(name, ""):
            raise ProblemError(HTTPStatus.NOT_FOUND, code, f"there is no such {name.removesuffix('_id')}")


MAX_NAMED = 10
MAX_NAME = 100
"""How many unknown parameters an error names, and how many characters of each."""


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
