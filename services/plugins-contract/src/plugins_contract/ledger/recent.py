"""The `once` calls that a worker has just ended. A server of Redis that has lost that would have them started again."""

import threading
import time
from collections import deque

from plugins_contract.ledger.scripts import LOST_REPLY, Command
from plugins_contract.outcomes import CallState

KEPT_SECONDS = 30.0
"""More than Redis can lose: a second or two at a restart, and as much as a replica was behind at a failover."""
MOST = 10_000
"""At most so many are kept, the latest."""
LARGE = 16 * 1024
"""A larger reply is not kept: its call counts as ended, its result as lost."""


class RecentCompletions:
    """COMPLETE commands that were answered. Used by the event loop and by the thread that renews leases."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, Command]] = deque(maxlen=MOST)

    def add(self, command: Command) -> None:
        """Keep a COMPLETE whose reply is its sixth argument and whose state is its fifth."""
        keys, args = command
        if len(args[5] if isinstance(args[5], bytes) else b"") > LARGE:
            command = keys, [*args[:4], CallState.UNKNOWN, LOST_REPLY, *args[6:]]
        with self._lock:
            self._kept.append((time.monotonic(), command))

    def forget_old(self) -> None:
        """Forget those of more than KEPT_SECONDS ago. Only while Redis is known to be the same server."""
        until = time.monotonic() - KEPT_SECONDS
        with self._lock:
            while self._kept and self._kept[0][0] < until:
                self._kept.popleft()

    def commands(self) -> list[Command]:
        """What is kept, oldest first."""
        with self._lock:
            return [command for _, command in self._kept]
