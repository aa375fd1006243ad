"""A Redis client whose commands share one connection: those of one turn of the event loop are sent in one write.

redis-py takes a connection out of its pool for each command, waits under a timeout of its own and puts it back, which
costs a script four times as much processor time as the rest of its way through the client (docs/tuning.md). redis-py
still connects, logs in, follows Sentinels, builds commands and interprets replies. Its pool serves transactions and
pub/sub.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.client import Pipeline, PubSub
from redis.asyncio.connection import DefaultParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, InvalidResponse, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from callstream_runtime.redis_errors import RedisUnavailable, translated, translating

CLOSED = "the client was closed"
_INCOMPLETE = object()
_pack: Callable[[Any], bytes] = cast("Any", hiredis).pack_command


class PipelinedRedis(Redis):
    """redis-py's client, with one connection for all commands but those of pipelines and pub/sub. Replies are bytes.

    When the connection breaks, each command that waits for its reply fails, and the next command connects again. No
    command is sent twice. While Redis cannot serve, and after `aclose`, each command fails with `RedisUnavailable`,
    those of pipelines and pub/sub too.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        *,
        timeout: float,
        blocking: bool,
        note: Callable[[Exception], None],
    ) -> None:
        """`pool` makes connections with a method `hand_over`, which returns the stream of one that is logged in.

        The connection is given up when a reply is missing for `timeout` seconds.

        `blocking`: it is closed when a command is cancelled, so that the server delivers nothing to that command any
        more. Otherwise the reply to a cancelled command is discarded. `note` is called with each error that the server
        sends.
        """
        super().__init__(connection_pool=pool)
        self.auto_close_connection_pool = True
        self._timeout = timeout
        self._blocking = blocking
        self._note = note
        self._link: _Link | None = None
        self._opening: asyncio.Task[_Link] | None = None
        self._closed = False

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        command = _packed(args)
        link = self._link
        if link is None or link.lost:
            link = await self._open()
        try:
            response = await link.send(command)
        except asyncio.CancelledError:
            if self._blocking:
                link.lose(RedisConnectionError("a blocking command was cancelled"))
            raise
        except (RedisError, OSError) as error:
            error = translated(error)
            raise error from error.__cause__
        options.pop("keys", None)  # for a cache of redis-py
        interpret = self.response_callbacks.get(args[0])
        return interpret(response, **options) if interpret else response

    async def execute_each(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send all of `commands` in one write. Returns their replies in order, as the server sent them, with an error
        in the place of a reply that did not come."""
        link = self._link
        try:
            packed = [_packed(command) for command in commands]
            if link is None or link.lost:
                link = await self._open()
        except RedisError as error:
            return [error] * len(commands)
        answers = await asyncio.gather(*map(link.send, packed), return_exceptions=True)
        return [translated(answer) if isinstance(answer, Exception) else answer for answer in answers]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "_Pipeline":
        return _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)

    def pubsub(self, **options: Any) -> "_PubSub":
        return _PubSub(self.connection_pool, **options)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._link is not None:
            self._link.lose(RedisConnectionError(CLOSED))
            await self._link.closed.wait()
        await super().aclose(close_connection_pool)

    async def _open(self) -> "_Link":
        """Connect. All callers share one attempt and its error."""
        if self._closed:
            raise RedisUnavailable(CLOSED, not_done=True)
        if self._opening is None:
            self._opening = asyncio.create_task(self._connect(), name="connect to Redis")
            self._opening.add_done_callback(_retrieve)
        with translating(not_sent=True):
            return await asyncio.shield(self._opening)

    async def _connect(self) -> "_Link":
        try:
            pool = self.connection_pool
            connection: Any = pool.connection_class(**pool.connection_kwargs)
            await connection.connect()
            self._link = _Link(connection.hand_over(), self._timeout, self._note)
            return self._link
        finally:
            self._opening = None


class _Pipeline(Pipeline):
    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        with translating():
            return [*map(translated, await super().execute(raise_on_error))]


class _PubSub(PubSub):
    async def execute_command(self, *args: Any) -> None:
        with translating():
            await super().execute_command(*args)

    async def get_message(self, *args: Any, **options: Any) -> Any:
        with translating():
            return await super().get_message(*args, **options)  # pyright: ignore[reportUnknownVariableType]


class _Link(asyncio.Protocol):
    """One connection. Replies come in the order of the commands, so a queue of waiters is all its state."""

    def __init__(self, stream: asyncio.StreamWriter, timeout: float, note: Callable[[Exception], None]) -> None:
        self.lost = False
        self.closed = asyncio.Event()
        self._stream = stream
        self._timeout = timeout
        self._note = note
        self._loop = asyncio.get_running_loop()
        self._replies = hiredis.Reader(protocolError=InvalidResponse, replyError=_error, notEnoughData=_INCOMPLETE)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._watchdog: asyncio.TimerHandle | None = None
        stream.transport.set_protocol(self)

    def send(self, command: bytes) -> asyncio.Future[Any]:
        """Send a command with the others of this turn of the event loop. The future gets its reply."""
        reply = self._loop.create_future()
        if self.lost:  # since it was connected
            reply.set_exception(RedisConnectionError("Connection closed by server."))
            return reply
        self._waiting.append((reply, self._loop.time()))
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(command)
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._timeout, self._look)
        return reply

    def lose(self, error: Exception) -> None:
        """Close the connection at once. Commands without a reply fail with an error of this kind and text."""
        if self.lost:
            return
        self.lost = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        for reply, _ in self._waiting:
            if not reply.done():
                reply.set_exception(type(error)(*error.args))
        self._waiting.clear()
        self._unsent.clear()
        self._stream.transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._replies.feed(data)
            while not self.lost and (reply := self._replies.gets()) is not _INCOMPLETE:
                self._answer(reply)
        except InvalidResponse as error:
            self.lose(error)

    def connection_lost(self, exc: Exception | None) -> None:
        text = f"Error while reading from Redis: {exc}" if exc else "Connection closed by server."
        self.lose(RedisConnectionError(text))
        self.closed.set()

    def _flush(self) -> None:
        if not self._stream.transport.is_closing():  # else `connection_lost` follows, and all commands fail there
            self._stream.transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def _answer(self, reply: Any) -> None:
        if isinstance(reply, hiredis.PushNotification):
            return
        if not self._waiting:
            raise InvalidResponse("the server sent a reply that nothing was asked for")
        waiter, _ = self._waiting.popleft()
        if isinstance(reply, Exception):
            self._note(reply)
            if not waiter.done():
                waiter.set_exception(reply)
        elif not waiter.done():
            waiter.set_result(reply)
        if isinstance(reply, ReadOnlyError):
            # The master was demoted: Sentinels name the new one to the next connection.
            self.lose(RedisConnectionError("The previous master is now a replica"))

    def _look(self) -> None:
        """Give the connection up if the oldest reply is overdue; otherwise look again when it would be."""
        self._watchdog = None
        if self._waiting:
            overdue_in = self._waiting[0][1] + self._timeout - self._loop.time()
            if overdue_in > 0:
                self._watchdog = self._loop.call_later(overdue_in, self._look)
            else:
                self.lose(RedisTimeoutError(f"Timeout reading from Redis: no reply for {self._timeout:g} s"))


def _retrieve(opening: asyncio.Task[Any]) -> None:
    """asyncio would log the error of an attempt whose callers were all cancelled."""
    if not opening.cancelled():
        opening.exception()


def _error(text: str) -> Exception:
    """The exception of redis-py for an error that the server sent."""
    parser: Any = DefaultParser
    return parser.parse_error(text)


def _packed(args: Sequence[Any]) -> bytes:
    name, *rest = args
    try:
        return _pack((*name.split(), *rest) if " " in name else tuple(args))
    except TypeError as error:
        raise DataError(f"an argument of {name} is not bytes, text or a number: {error}") from None
