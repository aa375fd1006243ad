"""The ASGI application, and the server that runs it."""

import asyncio
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import TypedDict, cast

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from sse_starlette.sse import AppStatus
from starlette.routing import Match
from starlette.types import ASGIApp, Scope

from callstream_runtime.connection_limits import ConnectionLimits
from callstream_runtime.http_connection import UNSENT_BYTES, connections_within
from dialog_engine.http import (
    about,
    calls,
    client_calls,
    described,
    health,
    me,
    operators,
    problems,
    questions,
    resources,
    results,
    session_events,
    sessions,
    turns,
    waiting,
)
from dialog_engine.http.admission import Admission
from dialog_engine.http.cors import METHODS, CrossOrigin, RefusalFields
from dialog_engine.http.page import page_router
from dialog_engine.http.requests import (
    MAX_BODY_BYTES,
    Admitted,
    BodyLimit,
    HeadAsGet,
    LoopbackNames,
    known_parameters,
    within_limits,
)
from dialog_engine.http.responses import Responses
from dialog_engine.http.services import Services
from dialog_engine.http.streams import StreamTimes

UNREAD_SECONDS = 5.0
"""How long after the end of its stream the kernel drops a connection whose client reads nothing, with all that waits
for it (on Linux).

sse-starlette ends the stream of such a client, and Uvicorn then closes the connection; but closing waits for a client
to read what is buffered. The engine, which comes first, counts the client.
"""
CUT_SECONDS = 5.0
"""How long streams may take to end when all turns have ended or were left; then they are cut."""


class State(TypedDict):
    """What the lifespan yields; each request's `state` has it."""

    services: Services


Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[State]]


class Application(FastAPI):
    """FastAPI, with what every answer has: also its own answer to an unexpected error, which no middleware sees."""

    cors_origins: Collection[str] = ()
    error_forms: problems.ErrorForms = MappingProxyType({})

    def build_middleware_stack(self) -> ASGIApp:
        """The application with all that is around it."""
        inner = super().build_middleware_stack()
        return Responses(CrossOrigin(inner, self.cors_origins) if self.cors_origins else inner)


def create_app(
    lifespan: Lifespan,
    admission: Admission | None,
    routers: Sequence[APIRouter] = (),
    *,
    facades: APIRouter,
    error_forms: problems.ErrorForms = MappingProxyType({}),
    version: str,
    loopback_only: bool,
    cors_origins: Collection[str] = (),
    max_body_bytes: int = MAX_BODY_BYTES,
    larger_bodies: Mapping[str, int] = MappingProxyType({}),
) -> FastAPI:
    """The application; `lifespan` builds and unwinds what it serves, and `admission` decides who may use it.

    `routers` are more routes. `facades` are those of other protocols (`facade`), whose errors have `error_forms`.
    `larger_bodies` are the bytes of bodies at paths where more than `max_body_bytes` are allowed.

    With `loopback_only` only requests that were sent to this machine by its own names are served. Browsers let pages
    on `cors_origins` use the API.
    """
    app = Application(
        title="Callstream dialog-engine",
        version=version,
        lifespan=lifespan,
        openapi_url=None,  # served by `description`
        docs_url=None,  # the documentation pages load scripts from other hosts
        redoc_url=None,
        responses=described.EVERYWHERE,
        # Spans of requests, where spans are exported (`callstream_runtime/tracing.py`); nothing else of FastAPI's.
        telemetry={"auto_configure": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    app.cors_origins = cors_origins
    app.add_api_route("/openapi.json", description, include_in_schema=False)
    app.error_forms = error_forms
    problems.install(app, allowed)
    app.add_middleware(HeadAsGet)
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes, larger=larger_bodies)
    app.add_middleware(Admitted, admission=admission)
    if loopback_only:
        app.add_middleware(LoopbackNames, origins=cors_origins)
    app.router.routes.extend(api().routes)
    app.router.routes.extend(facades.routes)
    for router in routers:
        app.include_router(router)
    return app


@cache
def api() -> APIRouter:
    """The routes of every application: the same objects, since FastAPI needs 40 ms to build them (`build_routes`)."""
    api = APIRouter(responses=described.EVERYWHERE)
    for part in (turns, waiting, calls, client_calls, questions, sessions, session_events, me, about, resources):
        api.include_router(part.router, dependencies=[Depends(within_limits), Depends(known_parameters)])
    for part in (health, operators, results):
        api.include_router(part.router, dependencies=[Depends(known_parameters)])
    api.include_router(page_router())
    return api


def facade(*routers: APIRouter) -> APIRouter:
    """The routes of other protocols, for any number of applications."""
    routes = APIRouter(responses=described.EVERYWHERE)
    for router in routers:
        routes.include_router(router, dependencies=[Depends(within_limits)])
    return routes


async def build_routes(app: FastAPI) -> None:
    """Have all routes ready before the first request. FastAPI builds those of an included router when a path is first
    looked for in it, which would keep the loop for 40 ms then."""
    nowhere: Scope = {"type": "http", "method": "GET", "path": "", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(nowhere)
        await asyncio.sleep(0)  # others have the loop in between


def allowed(request: Request) -> str:
    """The methods of the path of the request, as the field `Allow` names them."""

    def has(method: str) -> bool:
        scope = dict(request.scope, method=method)
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    found = [method for method in METHODS if has(method)]
    return ", ".join([*found, *(["HEAD"] if "GET" in found else [])])


def description(request: Request) -> JSONResponse:
    """The description of the API. Made in a thread when it is first asked for: that takes 60 ms of processor time."""
    app: FastAPI = request.app
    return JSONResponse(app.openapi())


class Server(uvicorn.Server):
    """Uvicorn, with bounds on what waits for clients, and an early notice of its shutdown.

    `closing` is set before Uvicorn waits for open connections; the lifespan's end would be too late for that.
    """

    def __init__(self, config: uvicorn.Config, closing: asyncio.Event, times: StreamTimes) -> None:
        super().__init__(config)
        self._closing = closing
        self._unread_ms = round((times.unread + UNREAD_SECONDS) * 1000)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Connections inherit the options of the socket that accepts them."""
        for listener in sockets or []:
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._unread_ms)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and wait for those that are open."""
        self._closing.set()
        await super().shutdown(sockets)


def server_of(
    app: ASGIApp,
    closing: asyncio.Event,
    *,
    grace_seconds: float,
    limits: ConnectionLimits | None = None,
    forwarded_allow_ips: str = "",
    cors_origins: Collection[str] = (),
    times: StreamTimes = StreamTimes(),
) -> Server:
    """A server for `app`. When it shuts down turns may run for `grace_seconds`, and their streams a little longer.

    Proxies at `forwarded_allow_ips` are believed the addresses of their clients. `cors_origins` as for `create_app`.
    """
    # sse-starlette would end every stream at SIGTERM. Here a stream ends when its turn does, or the log of the turn.
    AppStatus.disable_automatic_graceful_drain()
    limits = replace(limits or ConnectionLimits(), also_answer=RefusalFields(cors_origins))
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", connections_within(limits)),
        loop="callstream_runtime.event_loop:EventLoop",
        ws="none",
        proxy_headers=bool(forwarded_allow_ips),
        forwarded_allow_ips=forwarded_allow_ips,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=int(grace_seconds + CUT_SECONDS),
    )
    return Server(config, closing, times)
