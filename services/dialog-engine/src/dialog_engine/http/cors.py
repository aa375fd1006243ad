"""Pages on other origins: browsers let those that are listed use the API, with a key or a token and never by a cookie.

CORS (in the Fetch standard) is what browsers follow; it gives no rights. A request of a page on another origin is
admitted as any other is, and the page's cookie is accepted from the page alone (`admission.py`).
"""

from collections.abc import Awaitable, Collection, Iterable

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from dialog_engine.http.responses import REQUEST_ID, field, header, request_id

METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
READABLE = ("X-Turn-Id", "X-Session-Id", REQUEST_ID, "Retry-After", "x-should-retry")
"""The header fields of an answer that a page on another origin can read, beside those that it always can."""
MAX_AGE_SECONDS = 7200
"""How long a browser may keep what it was answered before a request. An origin that is taken from the list loses the
answers to its requests at once."""
API = "/v1/"


class CrossOrigin:
    """Adds to the answers of the API what pages on these origins need, and answers their browsers before a request."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)
        # All header fields: those that clients add, such as x-stainless-*, cannot be listed.
        self._listed = CORSMiddleware(
            app, origins, METHODS, allow_headers=["*"], expose_headers=READABLE, max_age=MAX_AGE_SECONDS
        )

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request."""
        listed = scope["type"] == "http" and scope["path"].startswith(API) and is_listed(scope, self._origins)
        return (self._listed if listed else self._app)(scope, receive, send)


def is_listed(scope: Scope, origins: Collection[str]) -> bool:
    """Whether a page on one of these origins makes the request."""
    return header(scope, b"origin").decode("latin-1") in origins


class RefusalFields:
    """What answers that end a connection, which no application makes, have beside the refusal: an id, and what pages on
    these origins need to read it."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def __call__(self, headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
        """The header fields for a client that has sent these so far.

        Where nothing of a request was read, its origin is not known: then every page can read the refusal, which tells
        what is known of the connection alone.
        """
        sent = list(headers)
        fields = [f"{REQUEST_ID}: {request_id(sent)}"]
        origin = field(sent, b"origin").decode("latin-1")
        if not self._origins or (sent and origin not in self._origins):
            return fields
        readable = ", ".join(READABLE)
        return [*fields, f"access-control-allow-origin: {origin or '*'}", f"access-control-expose-headers: {readable}"]
