"""Fixtures of the contract tests: the ledger on a real server, and what engines keep in each of the databases."""

from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path

import pytest
from redis.asyncio import Redis

from callstream_runtime.connections import thread_client
from dialog_engine.storage.database import Database
from tests.support.engine_stores import DIALECTS, EngineStore, opener
from tests.support.ledger import Bench


@pytest.fixture
async def bench(redis: Redis, redis_url: str) -> AsyncGenerator[Bench]:
    """The ledger on an empty server."""
    with thread_client(redis_url) as thread:
        bench = Bench(redis, thread)
        await bench.open()
        yield bench


@pytest.fixture(params=DIALECTS)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Database]:
    async with opener(request.param, tmp_path / "engine.sqlite3", request)(pool_size=6) as database:
        yield database


@pytest.fixture
def storage(database: Database) -> EngineStore:
    return EngineStore(database)


@pytest.fixture
def engines(database: Database) -> Callable[[str], EngineStore]:
    """Engines on one database, by their ids."""
    return partial(EngineStore, database)


@pytest.fixture
async def a(engines: Callable[[str], EngineStore]) -> EngineStore:
    return await engines("a").registered()


@pytest.fixture
async def b(engines: Callable[[str], EngineStore]) -> EngineStore:
    return await engines("b").registered()
