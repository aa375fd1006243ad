"""Kinds of connections on top of the library's.

One loses no cancellation and says what the server refuses for good; others follow the master that Sentinels know.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from redis.asyncio.connection import AbstractConnection, Connection
from redis.connection import Connection as SyncConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from plugins_contract.outage import describe_outage, needs_a_person
from plugins_contract.sentinel import MasterFinder

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


def following_master(kind: type[Connection], finder: MasterFinder) -> type[Connection]:
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


def sync_following_master(kind: type[SyncConnection], finder: MasterFinder) -> type[SyncConnection]:
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
