"""The proxy injects the faults that it is set to, and no others."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from callstream_runtime.connections import command_client
from callstream_runtime.redis_errors import RedisUnavailable
from tests.chaos.faults import BLACK_HOLE, Faults
from tests.chaos.frames import Frames, words_of
from tests.chaos.proxy import Proxy
from tests.marks import exhaustive
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, exhaustive("the harness itself")]


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


async def test_exactly_the_nth_reply_is_lost_after_the_server_has_executed_the_command(
    proxy: Proxy, through: Redis, redis: Redis
) -> None:
    await through.ping()
    proxy.set(Faults(lose_nth=2, lose_only="INCR"))

    assert await through.incr("n") == 1
    with pytest.raises(RedisUnavailable):
        await through.incr("n")
    assert await through.incr("n") == 3

    assert await redis.get("n") == b"3"
    assert proxy.counts().lost == {"INCRBY": 1}
    await redis.delete("n")


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
