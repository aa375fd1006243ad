"""Bodies with images, which may be larger than those of other paths."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from http import HTTPStatus
from typing import TypeVar

from fastapi import Request

from callstream_runtime.long_texts import reading
from dialog_engine.facades.images import RefusedError
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.requests import MAX_BODY_BYTES
from dialog_engine.http.services import Services

T = TypeVar("T")
MAX_BYTES = 20_000_000


def place_for(request: Request, engine: Services, subject: str) -> AbstractAsyncContextManager[None]:
    """A place among the large bodies of the subject, which is held while the body is read and what it asks is begun;
    none is needed for a body that other paths take too. Raises LimitExceededError."""
    announced = request.headers.get("content-length", "")
    is_large = not announced.isdecimal() or int(announced) > MAX_BODY_BYTES
    return engine.large_bodies.place(subject) if is_large else nullcontext()


async def read(request: Request, reader: Callable[[bytes], T]) -> T:
    """What the body of a request says, read off the event loop when it is long.

    Raises:
        ProblemError: the reader has refused it.
    """
    body = await request.body()
    try:
        return await reading(len(body), reader, body)
    except RefusedError as error:
        errors = [{"field": error.param, "message": str(error)}]
        detail = f"{error.param}: {error}"
        raise ProblemError(HTTPStatus.BAD_REQUEST, "INVALID_REQUEST", detail, errors=errors) from None
