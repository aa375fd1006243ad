"""The routes by which people sign in on the page, and sign out."""

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.config.identity import SIGN_IN_CALLBACK
from dialog_engine.errors import EngineError, TooManyAttemptsError, UnauthenticatedError
from dialog_engine.http.admission import cookie_of
from dialog_engine.http.problems import note, problem_of
from dialog_engine.http.requests import Engine, Sender
from dialog_engine.identity.failed_attempts import FailedAttempts
from dialog_engine.identity.sign_in import PAGE, SIGN_IN_SECONDS, SignIn

EXCHANGES_PER_MINUTE = 30
"""How many answers of the provider one address may bring in a minute that turn out to be none."""


class _InWords(APIRoute):
    """A browser whose sign-in is refused goes back to the page, which says why; other clients get the problem."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the route's requests."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except EngineError as error:
                if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
                    raise
                refusal = problem_of(error)
                note(request, refusal)
                return RedirectResponse(f"/?sign-in-refused={refusal.code}", HTTPStatus.SEE_OTHER)

        return handled


def sign_in_router(sign_in: SignIn) -> APIRouter:
    """The routes; browsers navigate to them, so that they are no part of the API's description."""
    router = APIRouter(include_in_schema=False, route_class=_InWords)
    exchanges = FailedAttempts(EXCHANGES_PER_MINUTE)

    def address_of(request: Request) -> str:
        """The sender's address. Raises TooManyAttemptsError: it has brought too many wrong answers."""
        address = request.client.host if request.client else ""
        if wait := exchanges.wait(address):
            raise TooManyAttemptsError(wait)
        return address

    def keep(response: Response, name: str, value: str, seconds: int) -> None:
        # Lax: the provider's redirect back to the page is a navigation from another site.
        response.set_cookie(name, value, max_age=seconds, secure=sign_in.secure, httponly=True, samesite="lax")

    @router.get("/sign-in")
    async def begin(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        address_of(request)
        location, pending = await sign_in.begin()
        response = RedirectResponse(location, HTTPStatus.SEE_OTHER)
        keep(response, sign_in.pending_cookie, pending, SIGN_IN_SECONDS)
        return response

    @router.get(SIGN_IN_CALLBACK)
    async def finish(  # pyright: ignore[reportUnusedFunction]
        request: Request,
        engine: Engine,
        code: Annotated[str, Query(max_length=4_000)] = "",
        state: Annotated[str, Query(max_length=200)] = "",
        iss: Annotated[str | None, Query(max_length=1_000)] = None,
    ) -> Response:
        if not code:
            raise UnauthenticatedError("the identity provider has not signed you in: begin the sign-in again")
        pending = cookie_of(request, sign_in.pending_cookie)
        exchanges.failed(address := address_of(request))  # before the provider is asked: many may come at once
        subject, session = await sign_in.finish(pending, code=code, state=state, issuer=iss)
        exchanges.succeeded(address)
        # Refusals are logged only: anyone could fill the store with them.
        await engine.audit.record(AuditEvent(AuditAction.SIGNED_IN, subject, key_id=PAGE))
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        keep(response, sign_in.cookie, session, sign_in.session_seconds)
        response.delete_cookie(sign_in.pending_cookie, secure=sign_in.secure, httponly=True, samesite="lax")
        return response

    @router.post("/sign-out", status_code=HTTPStatus.NO_CONTENT)
    async def end(engine: Engine, sender: Sender) -> Response:  # pyright: ignore[reportUnusedFunction]
        await engine.audit.record(AuditEvent(AuditAction.SIGNED_OUT, sender.subject, key_id=sender.key_id))
        response = Response(status_code=HTTPStatus.NO_CONTENT)
        response.delete_cookie(sign_in.cookie, secure=sign_in.secure, httponly=True, samesite="lax")
        return response

    return router
