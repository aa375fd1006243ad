"""Bodies with images, which may be larger than those of other paths."""

from contextlib import AbstractAsyncContextManager, nullcontext

from fastapi import Request

from dialog_engine.http.requests import MAX_BODY_BYTES
from dialog_engine.http.services import Services

MAX_BYTES = 20_000_000


def place_for(request: Request, engine: Services, subject: str) -> AbstractAsyncContextManager[None]:
    """A place among the large bodies of the subject, which is held while the body is read and what it asks is begun;
    none is needed for a body that other paths take too. Raises LimitExceededError."""
    announced = request.headers.get("content-length", "")
    is_large = not announced.isdecimal() or int(announced) > MAX_BODY_BYTES
    return engine.large_bodies.place(subject) if is_large else nullcontext()
