"""The messages that wait at this engine for the running turn of their session."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


class SessionQueue:
    """These messages, by session. Their order is in the store.

    Once `closed`, no message waits any longer.
    """

    def __init__(self) -> None:
        self.closed = False
        self._waiting: dict[str, dict[str, asyncio.Event]] = {}
        self._turn_ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._turn_ids)

    def __contains__(self, turn_id: object) -> bool:
        """Whether the message waits with which this turn begins. It may be asked in any thread."""
        return turn_id in self._turn_ids

    @contextmanager
    def waiting(self, session_id: str, turn_id: str) -> Generator[asyncio.Event]:
        """Wait for the session while the context is open. The event is set when the session may be free."""
        wake = asyncio.Event()
        waiting = self._waiting.setdefault(session_id, {})
        waiting[turn_id] = wake
        self._turn_ids.add(turn_id)
        try:
            yield wake
        finally:
            self._turn_ids.discard(turn_id)
            del waiting[turn_id]
            if not waiting:
                del self._waiting[session_id]

    def wake(self, session_id: str) -> None:
        """The session may be free: each of its messages asks the store again, and the first one begins."""
        for event in self._waiting.get(session_id, {}).values():
            event.set()

    def close(self) -> None:
        """The engine shuts down: refuse the messages that wait."""
        self.closed = True
        for session_id in self._waiting:
            self.wake(session_id)
