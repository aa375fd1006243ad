"""Messages that wait at this engine for their session. Their order is in the store; this wakes those that wait."""

import asyncio
from collections.abc import Generator, Set
from contextlib import contextmanager, suppress


class SessionQueue:
    """The waiting messages of one engine, by session."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, asyncio.Event]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def turn_ids(self) -> Set[str]:
        """The turns that are to begin with them."""
        return {turn_id for waiting in self._waiting.values() for turn_id in waiting}

    @contextmanager
    def waiting(self, session_id: str, turn_id: str) -> Generator[asyncio.Event]:
        """Wait for the session for as long as the block; the event is set when it may be free."""
        wake = asyncio.Event()
        waiting = self._waiting.setdefault(session_id, {})
        waiting[turn_id] = wake
        try:
            yield wake
        finally:
            del waiting[turn_id]
            if not waiting:
                del self._waiting[session_id]

    def wake(self, session_id: str) -> None:
        """The session may be free: all that wait for it ask again, and the first one gets it."""
        for event in self._waiting.get(session_id, {}).values():
            event.set()


async def woken(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, so long at most, and reset it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()
