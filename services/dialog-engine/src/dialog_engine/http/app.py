"""The ASGI application."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypedDict

from fastapi import Depends, FastAPI

from dialog_engine.http import approvals, chat, health, problems, sessions
from dialog_engine.http.auth import Authenticator, current_subject
from dialog_engine.http.limits import MAX_BODY_BYTES, BodyLimit, LoopbackNames
from dialog_engine.http.page import markdown_router, page_router
from dialog_engine.http.services import Services


class State(TypedDict):
    """What the lifespan yields; each request's `state` has it."""

    services: Services


Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[State]]


def create_app(
    lifespan: Lifespan,
    authenticator: Authenticator,
    *,
    version: str,
    loopback_only: bool,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """The application; `lifespan` builds and unwinds what it serves.

    With `loopback_only` only requests that were sent to this machine by its own names are served.
    """
    app = FastAPI(
        title="Callstream dialog-engine",
        version=version,
        lifespan=lifespan,
        docs_url=None,  # the documentation pages load scripts from other hosts; /openapi.json is there
        redoc_url=None,
        responses=problems.RESPONSES,
    )
    app.state.authenticator = authenticator
    problems.install(app)
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes)
    if loopback_only:
        app.add_middleware(LoopbackNames)
    app.include_router(chat.router)
    app.include_router(approvals.router)
    app.include_router(sessions.router)
    app.include_router(health.router)
    app.include_router(page_router())
    app.include_router(markdown_router(), dependencies=[Depends(current_subject)])
    return app
