"""The ASGI application."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypedDict

from fastapi import Depends, FastAPI
from starlette.middleware.trustedhost import TrustedHostMiddleware

from dialog_engine.http import chat, health, problems, sessions
from dialog_engine.http.auth import Authenticator, current_subject
from dialog_engine.http.limits import BodyLimit
from dialog_engine.http.page import markdown_router, page_router
from dialog_engine.http.services import Services

LOOPBACK_NAMES = ["localhost", "127.0.0.1", "[::1]", "testserver"]


class State(TypedDict):
    """What the lifespan yields; each request's `state` has it."""

    services: Services


Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[State]]


def create_app(lifespan: Lifespan, authenticator: Authenticator, *, version: str, loopback_only: bool) -> FastAPI:
    """The application; `lifespan` builds and unwinds what it serves.

    With `loopback_only` only requests that were sent to this machine by its own names are served: without keys, a
    page of somebody else's must not be able to reach the engine under a name that it controls (DNS rebinding).
    """
    app = FastAPI(title="Callstream dialog-engine", version=version, lifespan=lifespan, redoc_url=None)
    app.state.authenticator = authenticator
    problems.install(app)
    app.add_middleware(BodyLimit)
    if loopback_only:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES, www_redirect=False)
    app.include_router(chat.router)
    app.include_router(sessions.router)
    app.include_router(health.router)
    app.include_router(page_router())
    app.include_router(markdown_router(), dependencies=[Depends(current_subject)])
    return app
