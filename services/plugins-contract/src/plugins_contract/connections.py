"""Redis clients with settings that are safe for streams.

The library's defaults retry blindly: a retried XADD whose reply was lost makes two entries, a retried XREADGROUP
leaves phantom entries in our own pending list. Here nothing is retried below us; the scripts are idempotent, and the
loops that use them retry where they know it to be safe. Pools are small and wait for a free connection, so the number
of connections is constant whatever the load.
"""

import asyncio
from collections.abc import Iterable
from functools import cache
from typing import Any

from redis import Redis as SyncRedis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry as SyncRetry

CONNECT_TIMEOUT = 3.0
COMMAND_TIMEOUT = 5.0


def command_client(url: str, *, connections: int = 4) -> "Redis":
    """A client for commands that answer at once. Replies are bytes.

    Raises:
        ValueError: the URL's scheme is not one of redis, rediss, unix.
    """
    return _client(url, connections=connections, socket_timeout=COMMAND_TIMEOUT)


def blocking_client(url: str, *, block_seconds: float) -> "Redis":
    """A client with one connection for a loop that blocks up to `block_seconds` in each command."""
    return _client(url, connections=1, socket_timeout=block_seconds + COMMAND_TIMEOUT)


def thread_client(url: str, *, timeout: float = COMMAND_TIMEOUT) -> SyncRedis:
    """A blocking client for use in one thread, and so with one connection; it connects when it is first used.

    `timeout` is in seconds, and so long a silence is an outage.
    """
    return SyncRedis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=min(timeout, CONNECT_TIMEOUT),
        retry=SyncRetry(NoBackoff(), 0),
        socket_keepalive=True,
    )


def _client(url: str, *, connections: int, socket_timeout: float) -> "Redis":
    options: dict[str, Any] = {
        "max_connections": connections,
        "timeout": None,
        "socket_timeout": socket_timeout,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
    }
    pool = BlockingConnectionPool.from_url(url, **options)
    pool.connection_class = _cancellable(pool.connection_class)
    # from_pool: the client owns its pool, so that aclose() closes the connections.
    return Redis.from_pool(pool)


@cache
def _cancellable(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """Connections of this kind that never lose a cancellation.

    redis-py sends under `asyncio.wait_for`, and on Python 3.11 that swallows a cancellation which comes as the send
    ends: a loop that was cancelled then runs on for ever. `asyncio.timeout` does not, and needs no task per command.
    """

    class Cancellable(kind):
        async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
            limit, self.socket_timeout = self.socket_timeout, None
            try:
                async with asyncio.timeout(limit):
                    await super().send_packed_command(command, check_health)
            except TimeoutError:
                raise RedisTimeoutError("Timeout writing to socket") from None
            finally:
                self.socket_timeout = limit

    return Cancellable


_OUTAGE_PREFIXES = (
    "MISCONF", "OOM", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "TRYAGAIN", "NOAUTH", "NOPERM",
)  # fmt: skip


def is_outage(error: Exception) -> bool:
    """Whether `error` says that Redis cannot serve now, as opposed to: this command is wrong.

    A full disk answers MISCONF to every write: that is an outage too, and nothing is wrong with what was sent.
    """
    if isinstance(error, (RedisConnectionError, RedisTimeoutError, OSError)):
        return True
    return isinstance(error, ResponseError) and str(error).startswith(_OUTAGE_PREFIXES)
