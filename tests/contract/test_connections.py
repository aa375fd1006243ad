"""Redis clients: no write is sent twice, connections are few and returned, and a silent server is noticed."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
import uvloop
from redis.exceptions import ResponseError

from callstream_runtime.connections import LONGEST_BLOCK, blocking_client, command_client, thread_client
from callstream_runtime.loops import LISTEN_SECONDS, follow, messages
from callstream_runtime.redis_errors import RedisUnavailable
from deploy.local.ports import free_port
from plugins_contract.ledger import Offer, replies
from tests.chaos.faults import BLACK_HOLE
from tests.chaos.proxy import Proxy
from tests.marks import promise
from tests.support.ledger import Bench
from tests.support.servers import LocalServer
from tests.support.waiting import wait_until


async def connected_clients(url: str) -> int:
    with thread_client(url) as observer:
        return len(observer.client_list()) - 1  # pyright: ignore[reportArgumentType]


@promise("writes are not retried blindly, connections are few")
async def test_many_callers_at_once_share_few_connections_which_end_with_their_client(redis_url: str) -> None:
    client: Any = command_client(redis_url, connections=3)
    await asyncio.gather(*(client.set(f"n{number}", 1, ex=10) for number in range(200)))

    # Connections of earlier tests may still be closing; those of a pool stay open until it is closed.
    async def at_most(number: int) -> bool:
        return await connected_clients(redis_url) <= number

    await wait_until(lambda: at_most(3), what="at most three connections")
    await client.aclose()
    await wait_until(lambda: at_most(0), what="the end of all connections")


@promise("what ends with the last turns is counted and published before an engine is gone")
async def test_a_closed_client_says_so_and_does_not_connect_again(redis_url: str) -> None:
    client: Any = command_client(redis_url)
    await client.ping()
    await client.pipeline().ping().execute()
    await client.aclose()

    late = [client.ping(), client.pipeline().ping().execute(), client.pubsub().subscribe("x")]
    answers = [*await asyncio.gather(*late, return_exceptions=True), *await client.execute_each([["PING"]])]
    assert all(isinstance(answer, RedisUnavailable) for answer in answers)
    assert [str(answer) for answer in answers] == [
        "the client was closed",
        *["ConnectionError: the client was closed"] * 2,
        "the client was closed",
    ]


def test_a_command_for_a_connection_that_was_just_closed_fails_alone() -> None:
    """uvloop, which the processes run on, raises an error at a write to a connection whose loss it will report next."""
    errors: list[Any] = []

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"PING" not in (sent := await reader.read(65_536)) and sent:
            writer.write(b"%0\r\n" if b"HELLO" in sent else b"+OK\r\n")
        writer.write(b"+PONG\r\n")
        writer.close()

    async def ask() -> list[Any]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
        address = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        asked: list[asyncio.Future[Any]] = []
        async with server, command_client(address) as client:
            for _ in range(1_000):  # one in each turn of the loop, whenever the connection closes
                asked.append(asyncio.ensure_future(client.ping()))
                await asyncio.sleep(0)
            return await asyncio.gather(*asked, return_exceptions=True)

    answers = uvloop.run(ask())
    assert {type(answer) for answer in answers} == {bool, RedisUnavailable}
    assert errors == []


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_a_command_for_a_connection_that_is_closed_as_it_is_made_fails(run: Callable[[Any], None]) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(b"%0\r\n+OK\r\n+OK\r\n")
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        address = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        async with server, command_client(address) as client:
            for _ in range(100):
                with pytest.raises(RedisUnavailable):
                    await asyncio.wait_for(client.ping(), 30)

    run(ask())


async def test_a_read_may_block_for_longer_than_a_command_may_take(redis_url: str) -> None:
    client = blocking_client(redis_url, block_seconds=LONGEST_BLOCK)
    timeout = client.connection_pool.connection_kwargs["socket_timeout"]

    assert timeout > LONGEST_BLOCK
    assert not await client.xread({"nothing": "$"}, block=50)
    await client.aclose()


@promise("writes are not retried blindly, connections are few")
async def test_a_write_whose_connection_broke_is_not_sent_again(own_redis: LocalServer) -> None:
    client = command_client(own_redis.url)
    await client.ping()
    own_redis.kill()
    own_redis.start()

    with pytest.raises(RedisUnavailable):
        await client.xadd("stream", {"a": 1})
    await client.xadd("stream", {"a": 1})

    assert await client.xlen("stream") == 1
    await client.aclose()


async def pipelined_ping(client: Any) -> None:
    await client.pipeline(transaction=False).ping().execute()


async def test_a_cancellation_that_arrives_as_a_send_ends_is_not_lost(redis_url: str) -> None:
    """On Python 3.11 `asyncio.wait_for`, which redis-py sends under, returns instead of raising CancelledError."""
    async with command_client(redis_url, connections=1) as client:
        await pipelined_ping(client)
        (connection,) = client.connection_pool._available_connections  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        writer: Any = connection._writer  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        drain = writer.drain

        async def drain_and_cancel() -> None:
            await drain()
            ping.cancel()

        writer.drain = drain_and_cancel
        ping = asyncio.ensure_future(pipelined_ping(client))
        with pytest.raises(asyncio.CancelledError):
            await ping


async def reads_of(client: Any) -> int:
    return (await client.info("stats"))["total_reads_processed"]


async def test_commands_that_are_sent_together_are_one_write_and_each_error_has_its_place(redis_url: str) -> None:
    async with command_client(redis_url, connections=1) as client:
        before = await reads_of(client)
        first, second, third = await client.execute_each([("SET", "one", 1), ("LPOP", "one"), ("GET", "one")])
        assert await reads_of(client) - before == 2  # with that of INFO

        assert (first, third) == (b"OK", b"1")
        assert isinstance(second, ResponseError)
        await client.delete("one")


async def test_without_a_server_each_command_gets_the_error_at_once() -> None:
    async with command_client(f"redis://127.0.0.1:{free_port()}/0") as client:
        with anyio.fail_after(3):
            errors = await client.execute_each([("PING",), ("PING",)])
    assert [(type(error), error.not_done) for error in errors] == [(RedisUnavailable, True)] * 2


async def test_each_command_gets_its_own_reply_though_others_are_cancelled_or_refused(redis_url: str) -> None:
    async with command_client(redis_url) as client:
        await client.set("text", "a", ex=10)

        async def say(number: int) -> object:
            match number % 3:
                case 0:
                    return await client.incr("text")
                case _:
                    return await client.echo(f"{number}")

        asked = [asyncio.create_task(say(number)) for number in range(300)]
        await asyncio.sleep(0)  # all are sent
        for task in asked[1::3]:
            task.cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(answer, ResponseError) for answer in answers[0::3])
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[1::3])
        assert answers[2::3] == [b"%d" % number for number in range(2, 300, 3)]


async def test_a_cancelled_blocking_read_takes_no_entry(redis_url: str) -> None:
    """The server would deliver the next entry to a read that stays blocked though its caller has gone."""
    async with command_client(redis_url) as client, blocking_client(redis_url, block_seconds=3) as reader:
        await client.xgroup_create("stream", "group", id="0", mkstream=True)
        read = asyncio.ensure_future(reader.xreadgroup("group", "one", {"stream": ">"}, block=3000))

        async def blocked() -> int:
            return (await client.info("clients"))["blocked_clients"]

        await wait_until(blocked, what="a blocked read")
        read.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read

        async def unblocked() -> bool:
            return await blocked() == 0

        await wait_until(unblocked, 1.0, what="the end of the read")
        await client.xadd("stream", {"a": 1})
        assert (await client.xpending("stream", "group"))["pending"] == 0
        await client.delete("stream")


async def test_all_commands_without_a_reply_fail_when_the_connection_breaks(own_redis: LocalServer) -> None:
    async with command_client(own_redis.url) as client:
        await client.ping()
        own_redis.process.freeze()
        asked = [asyncio.ensure_future(client.incr("count")) for _ in range(10)]
        await asyncio.sleep(0)
        own_redis.kill()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(answer, RedisUnavailable) and not answer.not_done for answer in answers)
        own_redis.start()
        assert await client.get("count") in (None, b"10")  # sent once, with or without effect


async def test_callers_share_one_attempt_to_connect_and_its_error() -> None:
    attempts = 0

    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server, command_client(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0") as client:
        asked: Any = [client.ping() for _ in range(50)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(answer) for answer in answers} == {RedisUnavailable}
    assert attempts == 1


async def test_a_server_that_was_made_a_replica_is_left(own_redis: LocalServer) -> None:
    """Sentinels name the new master to a new connection; the old one would be refused for as long as it lives."""
    async with command_client(own_redis.url) as client:
        before = await client.client_id()
        await client.execute_command("REPLICAOF", "127.0.0.1", free_port())
        with pytest.raises(RedisUnavailable, match="read only"):
            await client.set("name", 1)
        assert await client.client_id() != before


async def test_scripts_survive_a_flush_of_the_server_and_its_restart(own_redis: LocalServer) -> None:
    async with command_client(own_redis.url, connections=1) as client:
        bench = Bench(client, thread_client(own_redis.url))
        engine = bench.engine
        await engine.enqueue(await bench.request())
        await client.execute_command("SCRIPT", "FLUSH")
        before = await bench.request()
        queued = await engine.enqueue_each([Offer(each, "*") for each in (before, await bench.request(), before)])
        assert [type(each) for each in queued] == [replies.Queued, replies.Queued, replies.AlreadyQueued]
        own_redis.kill()
        own_redis.start()
        with pytest.raises(RedisUnavailable):
            await client.ping()
        await engine.enqueue(await bench.request())
        assert await bench.backlog() == 4
        bench.thread.close()


def test_a_block_too_long_to_notice_silence_is_refused() -> None:
    with pytest.raises(ValueError, match="hides a server"):
        blocking_client("redis://127.0.0.1/0", block_seconds=LONGEST_BLOCK + 1)


def at_work(url: str) -> bool:
    """Whether a server has a connection and a thread that ask, one that waits for entries and one that listens."""
    with thread_client(url) as observer:
        doing = [client["cmd"] for client in observer.client_list()]  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
    return doing.count("ping") >= 2 and {"xread", "subscribe"} <= {*doing}


async def for_ever(use: Callable[[], Awaitable[Any]]) -> None:
    while True:
        await use()


@promise("a black-holed connection is noticed")
async def test_every_kind_of_client_notices_within_8_seconds_that_its_server_is_silent(redis_url: str) -> None:
    noticed: dict[str, float] = {}

    with Proxy(urlsplit(redis_url).port or 0, redis=False) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        commands: Any = command_client(url, connections=2)
        reader = blocking_client(url, block_seconds=LONGEST_BLOCK)
        listener = blocking_client(url, block_seconds=LISTEN_SECONDS)
        thread: Any = thread_client(url)
        fresh: Any = command_client(url)

        async def until_it_fails(name: str, use: Callable[[], Awaitable[Any]]) -> None:
            with pytest.raises(RedisUnavailable):
                await for_ever(use)
            noticed[name] = time.monotonic() - silent_since

        async def listen() -> None:
            async with aclosing(messages(listener, "channel")) as heard:
                async for _ in heard:
                    pass

        async def wait() -> None:
            await reader.xread({"nothing": "$"}, block=int(LONGEST_BLOCK * 1000))

        silent_since = time.monotonic()
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for number in range(6):
                tasks.create_task(until_it_fails(f"command {number}", commands.ping))
            tasks.create_task(until_it_fails("blocking read", wait))
            tasks.create_task(until_it_fails("pub/sub", listen))
            tasks.create_task(until_it_fails("thread", lambda: asyncio.to_thread(thread.ping)))
            await wait_until(lambda: at_work(redis_url), what="each of them to be in the middle of something")
            assert not noticed
            silent_since = time.monotonic()
            proxy.set(BLACK_HOLE)
            tasks.create_task(until_it_fails("new connection", fresh.ping))
        for client in (commands, reader, listener, fresh):
            await client.aclose()
        thread.close()

    assert len(noticed) == 10
    assert max(noticed.values()) < 8.2, noticed


async def test_a_quiet_channel_is_no_silent_server(redis_url: str) -> None:
    listener = blocking_client(redis_url, block_seconds=LISTEN_SECONDS)
    async with command_client(redis_url) as client, listener, aclosing(messages(listener, "channel")) as heard:
        assert await anext(heard) is None
        next_one = asyncio.ensure_future(anext(heard))
        _, waiting = await asyncio.wait([next_one], timeout=2.3 * LISTEN_SECONDS)
        assert waiting, next_one.exception()
        await client.publish("channel", b"news")
        assert await next_one == b"news"


async def test_following_a_channel_subscribes_again_after_an_outage(own_redis: LocalServer) -> None:
    received: list[bytes | None] = []
    listener = blocking_client(own_redis.url, block_seconds=LISTEN_SECONDS)
    following = asyncio.create_task(follow(listener, "channel", received.append))
    await wait_until(lambda: received == [None], what="the first subscription")
    own_redis.kill()
    own_redis.start()
    await wait_until(lambda: received == [None, None], what="the second subscription")
    async with command_client(own_redis.url) as client:
        await client.publish("channel", b"news")
    await wait_until(lambda: received == [None, None, b"news"], what="the message")
    following.cancel()
    await asyncio.wait([following])
    await listener.aclose()
