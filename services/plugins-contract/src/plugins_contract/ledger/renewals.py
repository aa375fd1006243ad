"""What a thread of a worker writes: renewals of the leases of its running calls, and what another server has lost.

All of it is blocking: leases are renewed from a thread, so that a busy event loop loses none.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from redis import Redis as SyncRedis

from plugins_contract.keys import Keys
from plugins_contract.ledger import replies, steps
from plugins_contract.ledger.scripts import Command, Delivery, run_each, unexpected

_COMPLETED_AT_ONCE = 500
RECENT_SECONDS = 30.0
"""More than Redis can lose: a second or two at a restart, and as much as a replica was behind at a failover."""
_MOST_RECENT = 10_000
"""At most so many are kept, the latest."""


class RecentCompletions:
    """The `once` calls that a worker has just ended: a server of Redis that lost that would have them started again.

    Used by the event loop and by the thread that renews leases.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, Command]] = deque(maxlen=_MOST_RECENT)

    def add(self, command: Command) -> None:
        """Keep a COMPLETE."""
        with self._lock:
            self._kept.append((time.monotonic(), command))

    def forget_old(self) -> None:
        """Forget those of more than RECENT_SECONDS ago. Only while Redis is known to be the same server."""
        until = time.monotonic() - RECENT_SECONDS
        with self._lock:
            while self._kept and self._kept[0][0] < until:
                self._kept.popleft()

    def commands(self) -> list[Command]:
        """What is kept, oldest first."""
        with self._lock:
            return [command for _, command in self._kept]


def renew_each(
    redis: SyncRedis, keys: Keys, held: Sequence[tuple[Delivery, int]]
) -> list[replies.Renewed | replies.Stale | Exception]:
    """Renew the leases of running calls, each under its fence, in one pipeline. Restores what Redis lost of a call.

    The answers are in the order of `held`, with an exception in the place of one that failed.

    Raises:
        RedisError: no answer came.
    """
    answers = run_each(redis, [_renewal(keys, delivery, fence) for delivery, fence in held])
    return [_renewed(answer) for answer in answers]


def complete_again(redis: SyncRedis, recent: RecentCompletions) -> list[Exception]:
    """COMPLETE the calls in `recent` again, at a server that may have lost that.

    Returns the answers that are errors.

    Raises:
        RedisError: no answer came.
    """
    commands = recent.commands()
    answers = [
        answer
        for at in range(0, len(commands), _COMPLETED_AT_ONCE)
        for answer in run_each(redis, commands[at : at + _COMPLETED_AT_ONCE])
    ]
    return [answer for answer in answers if isinstance(answer, Exception)]


def server_of(redis: SyncRedis, keys: Keys) -> str:
    """The run id of the server; empty where it cannot be read. Raises what redis raises."""
    return _report(redis, keys, "", "")


def report(redis: SyncRedis, keys: Keys, consumer: str, server: str) -> bool:
    """Record that this worker has written to `server` what it knows.

    It has renewed its running calls there, and completed those again that it ended last.

    False, and nothing is recorded, when this is another server by now. Raises what redis raises.
    """
    return _report(redis, keys, consumer, server) == server


def _report(redis: SyncRedis, keys: Keys, consumer: str, server: str) -> str:
    [answer] = run_each(redis, [steps.report(workers=keys.workers, consumer=consumer, server=server)])
    if isinstance(answer, Exception):
        raise answer
    return answer.decode()


def _renewal(keys: Keys, delivery: Delivery, fence: int) -> Command:
    request = delivery.request
    return steps.renew(
        call=keys.call(request.correlation_id),
        held=delivery.held(keys),
        fence=fence,
        token=delivery.token,
        class_=request.execution_class,
        deadline=request.deadline,
        mailbox=request.mailbox,
    )


def _renewed(answer: Any) -> replies.Renewed | replies.Stale | Exception:
    match answer:
        case [b"OK", cancel]:
            return replies.Renewed(bool(cancel))
        case [b"STALE"]:
            return replies.Stale()
        case Exception():
            return answer
        case _:
            return unexpected("RENEW", answer)
