"""Redis clients with settings that are safe for streams. Every client of either service is made here.

The library's defaults retry blindly: a retried XADD whose reply was lost makes two entries, a retried XREADGROUP
leaves phantom entries in our own pending list. Here nothing is retried below us; the scripts are idempotent, and the
loops that use them retry where they know it to be safe. Pools are small and wait for a free connection, so the number
of connections is constant whatever the load.

A peer that falls silent is noticed within 8 seconds: 3 to get a connection, new or used, and 5 to get an answer, or
the time of a blocking command and 5 more.

Connections lose no cancellation and say what the server refuses for good; some follow the master that Sentinels know.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable
from typing import Any

from redis import ConnectionPool as SyncConnectionPool
from redis import Redis as SyncRedis
from redis import SSLConnection as SyncSSLConnection
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import Connection as SyncConnection
from redis.connection import UnixDomainSocketConnection as SyncUnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry as SyncRetry

from plugins_contract import sentinel
from plugins_contract.outage import describe_outage, is_outage, needs_a_person
from plugins_contract.redis_address import Login, RedisAddress, Tls, parse_redis_url

__all__ = ["blocking_client", "command_client", "describe_outage", "is_outage", "thread_client"]

CONNECT_TIMEOUT = 3.0
"""Seconds to get a connection: to wait for a free one, and to make it, TLS and login included."""
COMMAND_TIMEOUT = 5.0
LONGEST_BLOCK = 3.0
"""A blocking command comes back after so many seconds at most, so that a silent peer is noticed in time."""
_SILENT_SECONDS = 8
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": _SILENT_SECONDS * 1000}


def command_client(address: RedisAddress | str, *, connections: int = 4, timeout: float = COMMAND_TIMEOUT) -> "Redis":
    """A client for commands that answer within `timeout` seconds. Replies are bytes.

    Raises:
        ValueError: `address` is a URL that cannot be read.
    """
    return _client(address, connections=connections, socket_timeout=timeout)


def blocking_client(address: RedisAddress | str, *, block_seconds: float) -> "Redis":
    """A client with one connection for a loop that blocks up to `block_seconds` in each command.

    Raises:
        ValueError: that is longer than `LONGEST_BLOCK`, or `address` is a URL that cannot be read.
    """
    if block_seconds > LONGEST_BLOCK:
        raise ValueError(f"a command that blocks for {block_seconds} s hides a peer that has fallen silent")
    return _client(address, connections=1, socket_timeout=block_seconds + COMMAND_TIMEOUT)


def thread_client(address: RedisAddress | str, *, timeout: float = COMMAND_TIMEOUT) -> SyncRedis:
    """A blocking client for use in one thread, and so with one connection; it connects when it is first used.

    `timeout` is in seconds, and so long a silence is an outage.
    """
    where = _read(address)
    options = _options(where, timeout)
    if where.socket_path:
        return _sync_client(SyncUnixDomainSocketConnection, options)
    kind = SyncSSLConnection if where.tls else SyncConnection
    return _sync_client(sync_following_master(kind, _finder(where)) if where.service else kind, options)


WITHOUT_TLS = "if it does not speak TLS at this port, REDIS_URL must begin with redis://"


class _Pool(BlockingConnectionPool):
    """Hands out a connection in `CONNECT_TIMEOUT`, or says that there is none: nobody waits behind a silent peer."""

    async def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> AbstractConnection:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await super().get_connection()
        except (TimeoutError, RedisTimeoutError):
            # A server that speaks no TLS waits for the rest of what it takes for a command.
            hint = f"; {WITHOUT_TLS}" if issubclass(self.connection_class, SSLConnection) else ""
            raise RedisConnectionError(f"no connection within {CONNECT_TIMEOUT:g} s{hint}") from None


def _client(address: RedisAddress | str, *, connections: int, socket_timeout: float) -> "Redis":
    where = _read(address)
    kind: type[AbstractConnection]
    if where.socket_path:
        kind = UnixDomainSocketConnection
    else:
        tcp = SSLConnection if where.tls else Connection
        kind = following_master(tcp, _finder(where)) if where.service else tcp
    options = _options(where, socket_timeout) | {"retry": Retry(NoBackoff(), 0)}
    pool = _Pool(max_connections=connections, timeout=None, connection_class=careful(kind), **options)  # pyright: ignore[reportArgumentType]
    # from_pool: the client owns its pool, so that aclose() closes the connections.
    return Redis.from_pool(pool)


def _sync_client(kind: type[Any], options: dict[str, Any]) -> SyncRedis:
    options = options | {"retry": SyncRetry(NoBackoff(), 0)}
    return SyncRedis.from_pool(SyncConnectionPool(kind, 1, **options))


def _finder(where: RedisAddress) -> sentinel.MasterFinder:
    options = _options(where, sentinel.ANSWER_SECONDS) | _login(where.sentinel_login) | {"db": 0}
    kind = SyncSSLConnection if where.tls else SyncConnection
    return sentinel.MasterFinder(
        where.hosts, where.service, lambda host, port: _sync_client(kind, options | {"host": host, "port": port})
    )


def _read(address: RedisAddress | str) -> RedisAddress:
    return parse_redis_url(address) if isinstance(address, str) else address


def _options(where: RedisAddress, timeout: float) -> dict[str, Any]:
    """What every connection has, of either kind of client."""
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
        # The first of several Sentinels stands there until a connection has asked them where the master is.
        options["host"], options["port"] = where.hosts[0]
        keepalive = {getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)}
        options |= {"socket_keepalive": True, "socket_keepalive_options": keepalive}
    return options | _login(where.login) | (_tls(where.tls) if where.tls else {})


def _login(login: Login) -> dict[str, Any]:
    return {"username": login.username, "password": login.password}


def _tls(tls: Tls) -> dict[str, Any]:
    return {
        "ssl_ca_certs": tls.ca_file,
        "ssl_certfile": tls.cert_file,
        "ssl_keyfile": tls.key_file,
        "ssl_check_hostname": tls.check_hostname,
    }


WITH_TLS = "if it speaks TLS at this port, REDIS_URL must begin with rediss://"

log = logging.getLogger(__name__)


def careful(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """Connections of this kind that never lose a cancellation, and tell each thing once that a person must put right.

    One that is made and then ends before a word was said is most often meant for TLS, and what is said tells so.

    To the loops a right that is missing is an outage, which they wait for the end of: somebody must say what it is.

    redis-py sends under `asyncio.wait_for`, and on Python 3.11 that swallows a cancellation which comes as the send
    ends: a loop that was cancelled then runs on for ever. `asyncio.timeout` does not, and needs no task per command.
    """

    said: set[str] = set()

    class Careful(kind):
        async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
            limit, self.socket_timeout = self.socket_timeout, None
            try:
                async with asyncio.timeout(limit):
                    await super().send_packed_command(command, check_health)
            except TimeoutError:
                raise RedisTimeoutError("Timeout writing to socket") from None
            finally:
                self.socket_timeout = limit

        async def on_connect_check_health(self, check_health: bool = True) -> None:
            try:
                await super().on_connect_check_health(check_health)
            except (RedisConnectionError, InvalidResponse) as error:
                # Not of a kind of its own: it was no answer, such as that a login is refused.
                if type(error) not in (RedisConnectionError, InvalidResponse):
                    raise
                raise RedisConnectionError(f"no word of Redis from what listens there ({error}); {WITH_TLS}") from error

        async def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                response: Any = await super().read_response(*args, **options)  # pyright: ignore[reportUnknownVariableType]
            except ResponseError as error:
                if needs_a_person(error) and (what := describe_outage(error)) not in said:
                    said.add(what)
                    log.error("Redis answers, and %s", what)  # noqa: TRY400 -- no traceback: it is a setting
                raise
            return response  # pyright: ignore[reportUnknownVariableType]

    return Careful


def following_master(kind: type[Connection], finder: sentinel.MasterFinder) -> type[Connection]:
    """Connections of this kind that go to the master of the moment, and leave one that is a master no more."""

    class FollowingMaster(kind):
        async def _connect(self) -> None:
            self.host, self.port = await asyncio.to_thread(finder.find)
            await super()._connect()

        async def on_connect_check_health(self, check_health: bool = True) -> None:
            await super().on_connect_check_health(check_health)
            await self.send_command("HELLO", check_health=False)
            _check_master(f"{self.host}:{self.port}", await self.read_response())

        async def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                response: Any = await super().read_response(*args, **options)  # pyright: ignore[reportUnknownVariableType]
            except ReadOnlyError:
                await self.disconnect(nowait=True)
                raise
            return response  # pyright: ignore[reportUnknownVariableType]

    return FollowingMaster


def sync_following_master(kind: type[SyncConnection], finder: sentinel.MasterFinder) -> type[SyncConnection]:
    """The same for a blocking client."""

    class FollowingMaster(kind):
        def _connect(self) -> Any:
            self.host, self.port = finder.find()
            return super()._connect()

        def on_connect_check_health(self, check_health: bool = True) -> None:
            super().on_connect_check_health(check_health)
            self.send_command("HELLO", check_health=False)
            _check_master(f"{self.host}:{self.port}", self.read_response())

        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                response: Any = super().read_response(*args, **options)  # pyright: ignore[reportUnknownVariableType]
            except ReadOnlyError:
                self.disconnect()
                raise
            return response  # pyright: ignore[reportUnknownVariableType]

    return FollowingMaster


class _NotTheMasterError(RedisConnectionError):
    """It is a server of Redis, and not the one we look for."""


def _check_master(where: str, hello: Any) -> None:
    """Sentinels may name one that does not know of its election yet, or was just voted out."""
    if hello.get(b"role") != b"master":
        raise _NotTheMasterError(f"{where} is not the master yet, or no more")
