"""Redis clients with settings that are safe for streams.

Both services make every client here. redis-py does the work: pools, TLS, Sentinel. While Redis cannot serve, they
raise `RedisUnavailable`. The defaults of redis-py are not safe for streams, so this module sets:

- No retries. A retried XADD whose reply was lost makes two entries, and a retried XREADGROUP leaves phantom entries in
  the caller's pending list. The ledger scripts are idempotent; the loops that run them retry.
- One connection for the commands of all callers (`pipelined`). Small pools for pipelines and pub/sub, which wait for a
  free connection: the number of connections does not grow with the load.
- Timeouts, so that a silent server is noticed within 8 seconds: 3 to get a connection and 5 for an answer, or the time
  of a blocking command and 5 more.

Small subclasses add what redis-py lacks; each says what and why (ADR 0031, docs/tuning.md).
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Any

from redis import ConnectionPool as SyncConnectionPool
from redis import Redis as SyncRedis
from redis import SSLConnection as SyncSSLConnection
from redis.asyncio import BlockingConnectionPool, Redis, Sentinel
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.client import Pipeline as SyncPipeline
from redis.connection import Connection as SyncConnection
from redis.connection import UnixDomainSocketConnection as SyncUnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry as SyncRetry
from redis.sentinel import Sentinel as SyncSentinel
from redis.sentinel import SentinelConnectionPool as SyncSentinelConnectionPool

from callstream_runtime.pipelined import CLOSED, PipelinedRedis
from callstream_runtime.redis_errors import NEEDS_A_PERSON, code_of, described, translated, translating
from callstream_runtime.settings import Login, RedisAddress, parse_redis_url

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 3.0
"""Seconds to wait for a free connection of the pool, and to make one."""
COMMAND_TIMEOUT = 5.0
LONGEST_BLOCK = 3.0
"""The most seconds that a blocking command may block, so that a silent server is noticed in time."""
SENTINEL_TIMEOUT = 0.8
"""Seconds that one Sentinel may take to answer before the next one is asked."""
_SILENT_SECONDS = 8
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": _SILENT_SECONDS * 1000}


def command_client(
    address: RedisAddress | str, *, connections: int = 4, timeout: float = COMMAND_TIMEOUT
) -> PipelinedRedis:
    """A client for commands that answer within `timeout` seconds. Replies are bytes.

    It makes one connection for commands, and up to `connections` for pipelines and pub/sub.

    Raises:
        ValueError: `address` is a URL that cannot be read.
    """
    return _client(address, connections=connections, socket_timeout=timeout)


def blocking_client(address: RedisAddress | str, *, block_seconds: float) -> "Redis":
    """A client for one loop whose commands block up to `block_seconds`.

    Raises:
        ValueError: that is longer than `LONGEST_BLOCK`, or `address` is a URL that cannot be read.
    """
    if block_seconds > LONGEST_BLOCK:
        raise ValueError(f"a command that blocks for {block_seconds} s hides a server that has fallen silent")
    return _client(address, connections=1, socket_timeout=block_seconds + COMMAND_TIMEOUT, blocking=True)


def thread_client(address: RedisAddress | str, *, timeout: float = COMMAND_TIMEOUT) -> SyncRedis:
    """A synchronous client with one connection, for use in one thread. It connects when it is first used.

    A command that is not answered within `timeout` seconds raises `RedisUnavailable`.
    """
    where = _read(address)
    options: dict[str, Any] = _options(where, timeout) | {"retry": SyncRetry(NoBackoff(), 0), "max_connections": 1}
    if where.service:
        sentinel = SyncSentinel(where.hosts, sentinel_kwargs=_sentinel_options(where, SyncRetry(NoBackoff(), 0)))
        pool: Any = _SyncSentinelPool(where.service, sentinel, ssl=where.tls is not None, **_without_host(options))
    else:
        tcp = SyncSSLConnection if where.tls else SyncConnection
        kind: Any = SyncUnixDomainSocketConnection if where.socket_path else tcp
        pool = SyncConnectionPool(kind, **options)
    return _ThreadRedis.from_pool(pool)


class _ThreadRedis(SyncRedis):
    """redis-py's client; while Redis cannot serve, it and its pipelines raise `RedisUnavailable`."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        with translating():
            return super().execute_command(*args, **options)  # pyright: ignore[reportUnknownVariableType]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "_ThreadPipeline":
        return _ThreadPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class _ThreadPipeline(SyncPipeline):
    def execute(self, raise_on_error: bool = True) -> list[Any]:
        with translating():
            return [*map(translated, super().execute(raise_on_error))]


class _Pool(BlockingConnectionPool):
    """redis-py's pool connects again after it was closed; this one does not."""

    closed = False

    async def get_connection(self, *arguments: Any, **options: Any) -> Any:
        if self.closed:
            raise RedisConnectionError(CLOSED)
        return await super().get_connection(*arguments, **options)  # pyright: ignore[reportUnknownMemberType]

    async def aclose(self) -> None:
        self.closed = True
        await super().aclose()


class _SentinelPool(SentinelConnectionPool, _Pool):
    """redis-py's Sentinel pool raises an error when all its connections are in use; this one waits for a free one.

    It also closes the connections to the Sentinels with its own.
    """

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


class _SyncSentinelPool(SyncSentinelConnectionPool):
    """Closes the connections to the Sentinels with its own."""

    def close(self) -> None:
        super().close()
        self.sentinel_manager.close()


def _client(
    address: RedisAddress | str, *, connections: int, socket_timeout: float, blocking: bool = False
) -> PipelinedRedis:
    where = _read(address)
    options: dict[str, Any] = _options(where, socket_timeout) | {
        "retry": Retry(NoBackoff(), 0),
        "max_connections": connections,
        "timeout": CONNECT_TIMEOUT,
    }
    note = _missing_rights_logged()
    kind: type[AbstractConnection]
    if where.service:
        kind = SentinelManagedSSLConnection if where.tls else SentinelManagedConnection
        sentinel = Sentinel(where.hosts, sentinel_kwargs=_sentinel_options(where, Retry(NoBackoff(), 0)))
        pool: Any = _SentinelPool(
            where.service, sentinel, connection_class=_checked(kind, note), **_without_host(options)
        )
    else:
        kind = UnixDomainSocketConnection if where.socket_path else SSLConnection if where.tls else Connection
        pool = _Pool(connection_class=_checked(kind, note), **options)
    # The client owns its pool, so that aclose() closes all connections.
    return PipelinedRedis(pool, timeout=socket_timeout, blocking=blocking, note=note)


def _missing_rights_logged() -> Callable[[Exception], None]:
    """A function that logs a missing right or a wrong cluster node once.

    Loops wait for the end of any outage; these two end only when an operator changes the ACL or a setting.
    """
    logged: set[str] = set()

    def note(error: Exception) -> None:
        if code_of(error) in NEEDS_A_PERSON and (reason := described(error)) not in logged:
            logged.add(reason)
            log.error("Redis answers, and %s", reason)

    return note


def _checked(kind: type[AbstractConnection], note: Callable[[Exception], None]) -> type[AbstractConnection]:
    """Connections of this kind with three things that redis-py lacks.

    - They never lose a cancellation. redis-py sends under `asyncio.wait_for`, which on Python 3.11 swallows a
      cancellation that arrives as the send ends: the cancelled loop would run on. `asyncio.timeout` does not, and
      needs no task per command.
    - They pass errors of the server to `note`.
    - Their stream can be taken over by a `PipelinedRedis`.
    """

    class Checked(kind):
        def hand_over(self) -> asyncio.StreamWriter:
            stream, self._reader, self._writer = self._writer, None, None
            if stream is None:
                raise RedisConnectionError("Connection closed by server.")
            return stream

        async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
            limit, self.socket_timeout = self.socket_timeout, None
            try:
                async with asyncio.timeout(limit):
                    await super().send_packed_command(command, check_health)
            except TimeoutError:
                raise RedisTimeoutError("Timeout writing to socket") from None
            finally:
                self.socket_timeout = limit

        async def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                response: Any = await super().read_response(*args, **options)  # pyright: ignore[reportUnknownVariableType]
            except ResponseError as error:
                note(error)
                raise
            return response  # pyright: ignore[reportUnknownVariableType]

    return Checked


def _read(address: RedisAddress | str) -> RedisAddress:
    return parse_redis_url(address) if isinstance(address, str) else address


def _options(where: RedisAddress, timeout: float) -> dict[str, Any]:
    """The options of every connection of either kind of client."""
    options: dict[str, Any] = {
        "db": where.database,
        "socket_timeout": timeout,
        "socket_connect_timeout": min(timeout, CONNECT_TIMEOUT),
        # Neither is needed, and each is one more command that an ACL would have to allow.
        "driver_info": None,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    if where.socket_path:
        options["path"] = where.socket_path
    else:
        options["host"], options["port"] = where.hosts[0]
        keepalive = {getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)}
        options |= {"socket_keepalive": True, "socket_keepalive_options": keepalive}
    if where.tls:
        options |= {
            "ssl_ca_certs": where.tls.ca_file,
            "ssl_certfile": where.tls.cert_file,
            "ssl_keyfile": where.tls.key_file,
            "ssl_check_hostname": where.tls.check_hostname,
        }
    return options | _login(where.login)


def _login(login: Login) -> dict[str, Any]:
    return {"username": login.username, "password": login.password}


def _sentinel_options(where: RedisAddress, retry: Any) -> dict[str, Any]:
    options = _without_host(_options(where, SENTINEL_TIMEOUT)) | _login(where.sentinel_login)
    return options | {"db": 0, "retry": retry, "ssl": where.tls is not None}


def _without_host(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in ("host", "port")}
