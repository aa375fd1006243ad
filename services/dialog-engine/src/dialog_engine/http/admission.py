"""Who may make which request: an API key, a token or a page session gives a sender, and each path needs a role.

A path that is not listed here needs the role `user`, so that a new route is closed.
"""

from typing import Protocol

from starlette.requests import Request

from dialog_engine.config.identity import SIGN_IN_CALLBACK
from dialog_engine.errors import ForbiddenError, NotServedError, UnauthenticatedError
from dialog_engine.identity.authenticator import NO_CREDENTIAL, Authenticator
from dialog_engine.identity.principal import ANONYMOUS, OPERATIONS, OPERATOR, USER, Principal
from plugins_contract import large_results

OPEN = frozenset({"/", "/healthz", "/readyz", "/sign-in", SIGN_IN_CALLBACK})
"""Paths without a role, as are those below ASSETS. `/readyz` shows its details to operators only."""
ASSETS = "/assets/"
PROBED = frozenset({"/metrics", "/openapi.json"})
OPERATORS = PROBED | {"/operators/subjects", "/operators/usage"}
"""Paths for operators."""
PROBES = PROBED | {"/healthz", "/readyz"}
"""The paths that are served at OPERATIONS_PORT, beside those below RESULTS, which are served nowhere else."""
RESULTS = large_results.PATH
FORWARDED_USER = "X-OpenWebUI-User-Jwt"
"""The header with which a chat page names the person behind its key."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def role_needed(path: str) -> str | None:
    """The role that a request to this path needs; None for an open path."""
    path = path.removesuffix("\n")  # Starlette's patterns match with one as well
    if path in OPEN or path.startswith(ASSETS):
        return None
    return OPERATOR if path in OPERATORS else USER


class PageSessions(Protocol):
    """The sessions of people who signed in on the page of `origin`, which are in the cookie `cookie`."""

    cookie: str
    origin: str

    def sender(self, sealed: str) -> Principal | None:
        """Whose session the cookie has; None when it is not valid, or has ended."""
        ...


class Admission:
    """Decides about each request before anything of its body is read."""

    def __init__(
        self, authenticator: Authenticator, sessions: PageSessions | None = None, operations_port: int | None = None
    ) -> None:
        """Without `sessions` people cannot sign in. `operations_port` serves operators' endpoints without a key."""
        self._authenticator = authenticator
        self._operations_port = operations_port
        self._sessions = sessions

    async def admit(self, request: Request) -> Principal:
        """The sender of `request`, who may make it.

        Raises:
            UnauthenticatedError, ForbiddenError, TooManyAttemptsError, IdentityProviderError, NotServedError: not so.
        """
        path = request.scope["path"]
        server = request.scope.get("server")
        if server and server[1] == self._operations_port:
            if path not in PROBES and not path.startswith(RESULTS):
                raise NotServedError("this port serves /healthz, /readyz, /metrics and /openapi.json only")
            return OPERATIONS
        if path.startswith(RESULTS):
            raise NotServedError("results of workers are taken at OPERATIONS_PORT only")
        role = role_needed(path)
        if role is None and path != "/readyz":
            return ANONYMOUS
        try:
            sender = await self._sender(request)
            if role is not None and sender is ANONYMOUS:
                raise UnauthenticatedError(NO_CREDENTIAL)
        except UnauthenticatedError as error:
            error.signs_in = self._sessions is not None
            raise
        if role is None or role in sender.roles:
            return sender
        raise ForbiddenError(
            f"{path.strip()} needs the role {role}, which the sender of the request does not have", sender.subject
        )

    async def _sender(self, request: Request) -> Principal:
        if authorization := request.headers.get("authorization"):
            scheme, _, credential = authorization.partition(" ")
            if scheme.lower() != "bearer":
                raise UnauthenticatedError("the request needs the header Authorization: Bearer, with a key or a token")
            address = request.client.host if request.client else ""
            # Such a token lives for minutes: its end does not end the stream of a request that was admitted with it.
            again = "principal" in request.scope.get("state", {})
            user_token = "" if again else request.headers.get(FORWARDED_USER, "")
            return await self._authenticator.authenticate(credential.strip(), address, user_token)
        if self._sessions and (sealed := cookie_of(request, self._sessions.cookie)):
            sender = self._sessions.sender(sealed)
            if sender is None:
                return ANONYMOUS
            if request.method not in SAFE_METHODS and not from_page(request, self._sessions.origin):
                raise ForbiddenError("a request with the page's cookie must come from the page itself", sender.subject)
            return sender
        return ANONYMOUS


def from_page(request: Request, origin: str) -> bool:
    """Whether a browser says that a page of this origin makes the request. Browsers say it with every POST and DELETE.

    SameSite=Lax keeps other sites from sending the cookie; this also keeps out other hosts of the same site.
    """
    site = request.headers.get("sec-fetch-site")
    return site == "same-origin" if site else request.headers.get("origin") == origin


def cookie_of(request: Request, name: str) -> str:
    """The value of the only cookie with exactly this name; empty without one.

    Starlette removes what Python calls white space, such as U+00A0, around names. With it another host of the same site
    could set a cookie that seems to begin with `__Host-`, and so put its own session in the place of a person's.
    """
    pairs = (part.strip(" ").partition("=") for field in request.headers.getlist("cookie") for part in field.split(";"))
    values = [value for found, _, value in pairs if found == name]
    return values[0] if len(values) == 1 else ""
