"""How a client says that a request repeats another one. The store knows which one (`storage/requests.py`)."""

import hashlib
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Header, Request
from starlette.requests import ClientDisconnect

from dialog_engine.chat.requests import StartingRequest
from dialog_engine.http.problems import ProblemError

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern="^[ -~]{1,255}$",
        description="The client's own name of this request, of which one that is sent again within 24 hours begins"
        " nothing and gets the same answer. With another path or body it is refused.",
    ),
]
RetryCount = Annotated[
    str | None,
    Header(
        alias="X-Stainless-Retry-Count",
        description="How often the client has repeated this request. Above 0, and without a key, an equal request of"
        " the last 10 minutes is looked for, whose turn is the answer.",
    ),
]


def content_digest(method: str, path: str, query: bytes, body: bytes) -> str:
    """A digest of what a request asks, in hexadecimal. It takes a second for a gigabyte."""
    digest = hashlib.sha256()
    for part in (method.encode(), path.encode(), query, body):
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.hexdigest()


async def starting_request(request: Request, key: Key = None, retry_count: RetryCount = None) -> StartingRequest:
    """Dependency of routes that start something: what the client says of its request.

    Raises:
        ProblemError: the client has gone before it has sent the whole body.
    """
    try:
        body = await request.body()
    except ClientDisconnect:
        raise ProblemError(HTTPStatus.REQUEST_TIMEOUT, "CLIENT_GONE", "the body of the request is not whole") from None
    content = content_digest(request.method, request.scope["path"], request.scope["query_string"], body)
    return StartingRequest(key or "", content, (retry_count or "").strip("0").isdecimal())


Starting = Annotated[StartingRequest, Depends(starting_request)]
