"""Fixtures of the contract tests."""

from collections.abc import AsyncGenerator

import pytest
from redis.asyncio import Redis

from callstream_runtime.connections import thread_client
from tests.support.ledger import Bench


@pytest.fixture
async def bench(redis: Redis, redis_url: str) -> AsyncGenerator[Bench]:
    """The ledger on an empty server."""
    with thread_client(redis_url) as thread:
        bench = Bench(redis, thread)
        await bench.open()
        yield bench
