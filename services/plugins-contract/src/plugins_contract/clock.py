"""One clock for deadlines: the time of Redis, not of any machine (invariant I9)."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time of Redis."""

    def now_ms(self) -> int:
        """Unix milliseconds on the clock of Redis, as well as it is known here."""
        ...


class RedisClock:
    """Follows the clock of Redis by samples, and runs on the monotonic clock between them.

    Before the first sample it follows this machine's own clock: with Redis down at the start a deadline is still a
    sensible number, and the engine enforces it by its own monotonic timer anyway.
    """

    def __init__(self) -> None:
        self._offset_ms = time.time() * 1000 - time.monotonic() * 1000

    def sample(self, redis_time: tuple[int, int], sent_at: float, received_at: float) -> None:
        """Take one answer of TIME: `(seconds, microseconds)`, asked and answered at these monotonic seconds."""
        seconds, microseconds = redis_time
        middle_ms = (sent_at + received_at) / 2 * 1000
        self._offset_ms = seconds * 1000 + microseconds / 1000 - middle_ms

    def now_ms(self) -> int:
        """Unix milliseconds on the clock of Redis."""
        return int(time.monotonic() * 1000 + self._offset_ms)
