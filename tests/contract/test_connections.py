"""Redis clients: nothing is retried behind our back, connections are few and given back."""

import anyio
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from plugins_contract.connections import LONGEST_BLOCK, blocking_client, command_client, thread_client
from tests.support.processes import free_port
from tests.support.servers import LocalServer

pytestmark = pytest.mark.anyio


async def connected_clients(url: str) -> int:
    with thread_client(url) as observer:
        return len(observer.client_list()) - 1  # pyright: ignore[reportArgumentType]


async def test_however_many_ask_at_once_the_connections_are_few(redis_url: str) -> None:
    client = command_client(redis_url, connections=3)

    async def write(name: str) -> None:
        await client.set(name, 1, ex=10)

    async with anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(write, f"n{number}")

    assert await connected_clients(redis_url) <= 3
    await client.aclose()


async def test_closing_a_client_closes_its_connections(redis_url: str) -> None:
    client = command_client(redis_url)
    await client.ping()
    await client.aclose()

    assert await connected_clients(redis_url) == 0


async def test_a_read_may_block_for_longer_than_a_command_may_take(redis_url: str) -> None:
    client = blocking_client(redis_url, block_seconds=LONGEST_BLOCK)
    timeout = client.connection_pool.connection_kwargs["socket_timeout"]

    assert timeout > LONGEST_BLOCK
    assert not await client.xread({"nothing": "$"}, block=50)
    await client.aclose()


async def test_a_write_whose_connection_broke_is_not_sent_again(own_redis: LocalServer) -> None:
    client = command_client(own_redis.url)
    await client.ping()
    own_redis.kill()
    own_redis.start()

    with pytest.raises(RedisConnectionError):
        await client.xadd("stream", {"a": 1})
    await client.xadd("stream", {"a": 1})

    assert await client.xlen("stream") == 1
    await client.aclose()


async def test_an_absent_server_is_told_at_once() -> None:
    client = command_client(f"redis://127.0.0.1:{free_port()}/0")

    with anyio.fail_after(3), pytest.raises(RedisConnectionError):
        await client.ping()
    await client.aclose()


@pytest.mark.parametrize("url", ["http://127.0.0.1", "127.0.0.1:6379"])
def test_a_url_of_another_scheme_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="redis://"):
        command_client(url)
