"""What RedisWatch learns from real servers."""

from contextlib import aclosing

import pytest
from redis.asyncio import Redis

from callstream_runtime.clock import RedisClock, RedisWatch
from callstream_runtime.connections import command_client
from plugins_contract.keys import Keys
from tests.support.servers import LocalServer

pytestmark = pytest.mark.anyio


@pytest.mark.every_redis
async def test_every_server_answers_and_no_key_is_left_behind(redis: Redis) -> None:
    eye = RedisWatch(redis, Keys(), RedisClock())
    await eye.ask()
    steady = eye.steady_for()
    assert steady > 0
    await eye.ask()
    assert eye.steady_for() > steady
    assert not await redis.exists(Keys().requests)


async def test_a_quick_restart_is_noticed_by_the_run_id(own_redis: LocalServer) -> None:
    async with aclosing(command_client(own_redis.url)) as client:
        eye = RedisWatch(client, Keys(), RedisClock())
        await eye.ask()
        own_redis.kill()
        own_redis.start()
        await client.connection_pool.disconnect()  # the next question meets the new server, and fails not once
        before = eye.steady_for()
        await eye.ask()
        assert 0 < eye.steady_for() < before
