"""Units of work that are given up because the database server answers nothing to this engine."""

import threading
import time

from dialog_engine.errors import StorageUnavailableError


class Pulse:
    """When the server last answered a statement of this engine, on the monotonic clock."""

    answered_at = 0.0

    def answered(self) -> None:
        """It has answered just now."""
        self.answered_at = time.monotonic()


class Attempt:
    """One unit of work, which a thread runs and its caller may give up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given_up = self._committing = False

    def give_up(self) -> bool:
        """Whether nothing of it will be written. False when its COMMIT may have reached the server."""
        with self._lock:
            self._given_up = True
            return not self._committing

    def commits(self) -> None:
        """The thread is about to send COMMIT.

        Raises:
            StorageUnavailableError: the unit was given up, and its caller knows that nothing is written.
        """
        with self._lock:
            if self._given_up:
                raise StorageUnavailableError("the unit of work was given up: nothing was written")
            self._committing = True
