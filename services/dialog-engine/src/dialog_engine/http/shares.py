"""What one subject may have of an engine at the same time, so that nothing is left to others or to memory."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dialog_engine.errors import LimitExceededError

RETRY_SECONDS = 1


@dataclass(slots=True)
class _Share:
    places: asyncio.Semaphore
    requests: int = 0


class Shares:
    """Each subject has `at_once` places. Its requests beyond them wait, and beyond `most` they are refused.

    `what` names the requests in the refusal.
    """

    def __init__(self, at_once: int, most: int, what: str) -> None:
        self._at_once = at_once
        self._most = most
        self._what = what
        self._of: dict[str, _Share] = {}

    @asynccontextmanager
    async def place(self, subject: str) -> AsyncGenerator[None]:
        """Wait for a place of the subject, and hold it for as long as the block. Raises LimitExceededError."""
        share = self._of.setdefault(subject, _Share(asyncio.Semaphore(self._at_once)))
        if share.requests >= self._most:
            text = f"{self._most} {self._what} may be open at the same time: wait for the answer to one of them"
            raise LimitExceededError(text, RETRY_SECONDS)
        share.requests += 1
        try:
            async with share.places:
                yield
        finally:
            share.requests -= 1
            if not share.requests:
                del self._of[subject]
