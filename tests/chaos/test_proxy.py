"""The proxy injects the faults that it is set to, and no others."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from callstream_runtime.connections import command_client
from tests.chaos.faults import BLACK_HOLE, Faults
from tests.chaos.frames import Frames, words_of
from tests.chaos.proxy import Proxy
from tests.marks import exhaustive
from tests.support.waiting import wait_until, wait_until_blocking

pytestmark = [pytest.mark.anyio, exhaustive("the harness itself")]

BROKEN = (RedisConnectionError, RedisTimeoutError)


@pytest.fixture
def proxy(redis_url: str) -> Generator[Proxy]:
    with Proxy(port_of(redis_url)) as proxy:
        yield proxy


@pytest.fixture
async def through(proxy: Proxy) -> AsyncGenerator[Redis]:
    """A client whose commands go through the proxy."""
    async with command_client(proxy.url) as client:
        yield client


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def hasty_client(proxy: Proxy) -> SyncRedis:
    """A client that waits for half a second only, and connects when it is first used."""
    return SyncRedis.from_url(proxy.url, socket_timeout=0.5, retry=None)


# --- Frames ---


@pytest.mark.parametrize(
    "frame",
    [
        b"+OK\r\n",
        b"$-1\r\n",
        b"$5\r\na\r\nb!\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n$1\r\na\r\n*1\r\n:7\r\n",
        b"%1\r\n$1\r\nk\r\n~2\r\n#t\r\n,1.5\r\n",
        b"|1\r\n+ttl\r\n:3\r\n*1\r\n_\r\n",
        b">2\r\n+message\r\n=7\r\ntxt:abc\r\n",
    ],
)
def test_a_frame_ends_where_it_ends_however_it_is_cut(frame: bytes) -> None:
    stream = frame * 3

    for size in range(1, len(stream) + 1):
        frames = Frames()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [each for piece in pieces for each in frames.feed(piece)] == [frame] * 3, f"in pieces of {size}"


def test_the_first_words_name_the_command() -> None:
    assert words_of(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n", 2) == [b"SET", b"a"]
    assert words_of(b"PING\r\n", 2) == [b"PING"]


# --- What passes ---


async def test_without_faults_everything_passes_and_is_counted(proxy: Proxy, through: Redis) -> None:
    large = b"x" * 3_000_000

    await through.set("large", large, ex=60)

    assert await through.get("large") == large
    counts = proxy.counts()
    assert counts.by_kind["SET"] == counts.by_kind["GET"] == 1
    assert counts.connections == counts.accepted == 1
    assert not counts.lost


# --- Lost replies ---


async def test_exactly_the_nth_reply_is_lost_after_the_server_has_executed_the_command(
    proxy: Proxy, through: Redis, redis: Redis
) -> None:
    await through.ping()
    proxy.set(Faults(lose_nth=2, lose_only="INCR"))

    assert await through.incr("n") == 1
    with pytest.raises(BROKEN):
        await through.incr("n")
    assert await through.incr("n") == 3

    assert await redis.get("n") == b"3"
    assert proxy.counts().lost == {"INCRBY": 1}
    await redis.delete("n")


async def test_replies_before_the_lost_one_arrive(proxy: Proxy, redis: Redis) -> None:
    with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=5)) as client:
        proxy.set(Faults(lose_nth=3))
        client.sendall(b"*1\r\n$4\r\nPING\r\n" * 5)
        assert everything_from(client) == b"+PONG\r\n" * 2


async def test_the_first_reply_of_each_kind_can_be_lost(proxy: Proxy, through: Redis) -> None:
    proxy.set(Faults(lose_first_of_each=True, lose_only="EVAL"))

    for script in ("return 1", "return 2"):
        with pytest.raises(BROKEN):
            await through.eval(script, 0)
        await through.eval(script, 0)
    assert list(proxy.counts().lost.values()) == [1, 1]
    assert set(proxy.counts().by_kind.values()) >= {2}


async def test_a_share_of_replies_is_lost_and_no_command_runs_twice(proxy: Proxy, through: Redis, redis: Redis) -> None:
    proxy.set(Faults(lose_share=0.1))
    failed = 0
    for _ in range(1000):
        try:
            await through.incr("n")
        except BROKEN:
            failed += 1
    proxy.clear()

    counts = proxy.counts()
    assert 50 < counts.lost["INCRBY"] < 150
    assert counts.by_kind["INCRBY"] == int(await redis.get("n") or 0)
    assert failed >= counts.lost["INCRBY"]  # the replies to setting up a connection are lost as well
    await redis.delete("n")


# --- Silence, delay, bandwidth ---


async def test_in_a_black_hole_connections_open_and_nothing_comes_and_afterwards_it_does(
    proxy: Proxy, redis: Redis
) -> None:
    existing, new = hasty_client(proxy), hasty_client(proxy)
    with existing, new:
        existing.ping()
        with proxy.broken(BLACK_HOLE):
            for client in (existing, new):
                with pytest.raises(RedisTimeoutError):
                    client.ping()
        assert existing.ping()
        assert new.ping()


async def test_a_held_request_is_executed_late_though_its_client_has_gone(proxy: Proxy, redis: Redis) -> None:
    with hasty_client(proxy) as client:
        client.ping()
        with proxy.broken(Faults(hold_requests=True)):
            with pytest.raises(RedisTimeoutError):
                client.incr("n")
            client.close()
            assert await redis.get("n") is None
        await wait_until(lambda: redis.get("n"), what="the late command")
    await wait_until(lambda: proxy.counts().connections == 0, what="the end of the link")
    await redis.delete("n")


async def test_held_replies_leave_the_command_executed(proxy: Proxy, redis: Redis) -> None:
    with hasty_client(proxy) as client:
        client.ping()
        with proxy.broken(Faults(hold_replies=True)), pytest.raises(RedisTimeoutError):
            client.incr("n")
    assert await redis.get("n") == b"1"
    await redis.delete("n")


async def test_replies_for_a_client_that_is_gone_have_no_effect(proxy: Proxy, through: Redis, redis: Redis) -> None:
    async def has_ended() -> bool:
        return len(await redis.client_list()) == 1

    with proxy.broken(Faults(hold_replies=True)):
        with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=5)) as client:
            client.sendall(b"*1\r\n$4\r\nPING\r\n")
            await wait_until(lambda: proxy.counts().commands == 1)
        await wait_until(has_ended, what="the server's answer, and its end of the connection")
    await wait_until(lambda: proxy.counts().connections == 0, what="the end of the link")
    assert await through.ping()


@pytest.mark.parametrize("faults", [Faults(delay_requests=0.3), Faults(delay_replies=0.3)], ids=str)
async def test_each_direction_can_be_late(proxy: Proxy, through: Redis, faults: Faults) -> None:
    await through.ping()
    proxy.set(faults)
    begun = time.monotonic()
    await asyncio.gather(*(through.ping() for _ in range(3)))
    assert 0.3 <= time.monotonic() - begun < 30


async def test_the_bandwidth_can_be_limited(proxy: Proxy, through: Redis) -> None:
    await through.ping()
    proxy.set(Faults(bytes_per_second=100_000))
    begun = time.monotonic()
    await through.set("large", b"x" * 50_000, ex=60)
    assert 0.4 <= time.monotonic() - begun < 30


# --- Connections ---


async def test_a_cut_breaks_what_is_open_and_new_connections_are_good(
    proxy: Proxy, through: Redis, redis: Redis
) -> None:
    client_of_old = await asyncio.open_connection("127.0.0.1", proxy.port)
    await through.ping()
    blocking: Any = through
    waiting: asyncio.Task[Any] = asyncio.create_task(blocking.execute_command("BLPOP", "nothing", 5))
    await wait_until(lambda: _is_blocked(redis))
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        await client_of_old[0].read()
    client_of_old[1].close()
    with pytest.raises(BROKEN):
        await waiting
    assert await through.ping()


async def _is_blocked(redis: Redis) -> bool:
    clients: Any = await redis.info("clients")
    return clients["blocked_clients"] == 1


async def test_a_half_closed_connection_still_carries_commands_to_the_server(proxy: Proxy, redis: Redis) -> None:
    with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=5)) as client:
        wait_until_blocking(lambda: proxy.counts().connections == 1)
        proxy.half_close()
        assert client.recv(100) == b""
        client.sendall(b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$4\r\nopen\r\n")
        await wait_until(lambda: redis.get("half"), what="the command")
    await wait_until(lambda: proxy.counts().connections == 0, what="the end of the link")
    await redis.delete("half")


async def test_connections_are_refused_and_accepted_again(proxy: Proxy, through: Redis) -> None:
    await through.ping()
    with proxy.broken(Faults(refuse=True)):
        with pytest.raises(RedisConnectionError, match="refused"), hasty_client(proxy) as client:
            client.ping()
        assert await through.ping(), "what is open stays open"
    with hasty_client(proxy) as client:
        assert client.ping()


async def test_a_server_that_is_away_is_a_connection_that_breaks() -> None:
    with Proxy(1) as proxy, hasty_client(proxy) as client, pytest.raises(RedisError):
        client.ping()


async def test_other_protocols_pass_too() -> None:
    async with echo_server() as port:
        with Proxy(port, redis=False) as proxy, closing(socket.create_connection(("127.0.0.1", proxy.port))) as client:
            client.settimeout(5)
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            client.shutdown(socket.SHUT_WR)
            assert await asyncio.to_thread(everything_from, client) == b"GET / HTTP/1.1\r\n\r\n"


@asynccontextmanager
async def echo_server() -> AsyncGenerator[int]:
    """Says what it hears, and ends when its client does."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def everything_from(client: socket.socket) -> bytes:
    """All that comes, up to the end of the connection."""
    received = b""
    while data := client.recv(10_000):
        received += data
    return received
