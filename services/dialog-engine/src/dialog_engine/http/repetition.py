"""How a client says that a request repeats another one. The store knows which one (`storage/requests.py`)."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Header, Request
from starlette.requests import ClientDisconnect

from dialog_engine.chat.requests import StartingRequest
from dialog_engine.errors import SentBeforeError
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.services import Services
from dialog_engine.tool_calls.values import AnswerKey

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


async def answering_request(request: Request, key: Key = None) -> StartingRequest:
    """Dependency of routes that answer calls. Raises as `starting_request`."""
    return await starting_request(request, key)


Answering = Annotated[StartingRequest, Depends(answering_request)]


@asynccontextmanager
async def answering(
    request: StartingRequest, engine: Services, subject: str, turn_id: str
) -> AsyncGenerator[AnswerKey | None]:
    """Around the answers of a request to calls of a turn: the key with which they are to be committed, if it has one.
    Where nothing was left to commit, the key is kept at the end.

    Raises:
        IdempotencyKeyReusedError: the key stands for another request.
    """
    if not request.key:
        yield None
        return
    with suppress(SentBeforeError):  # what it has answered stands
        await engine.requests.check_new(subject, request)
    answer_key = AnswerKey(subject, request.key, request.content)
    yield answer_key
    await engine.requests.keep_answer(turn_id, answer_key)
