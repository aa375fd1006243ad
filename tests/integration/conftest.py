"""What the tests of whole parts have in common."""

from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from dialog_engine.storage.database import Database
from dialog_engine.storage.engines import SqlEngines
from dialog_engine.wiring.times import EngineTimes
from tests.integration.demo import Demo
from tests.integration.engines import Engine, Model, Start, running_engine, settings
from tests.support.engine_stores import DIALECTS, EngineStore, OpenDatabase, opener
from tests.support.ledger import Bench
from tests.support.loop_probe import short_turns
from tests.support.working import Caller, calling

__all__ = ["short_turns"]


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Generator[Demo]:
    """The demo MCP server, which all tests share: not to be stopped."""
    demo = Demo(tmp_path_factory.mktemp("demo"))
    demo.wait_ready()
    yield demo
    demo.process.close()


@pytest.fixture
async def model() -> AsyncGenerator[Model]:
    """A model that engines can ask."""
    async with Model().serving() as model:
        yield model


@pytest.fixture(params=DIALECTS)
def open_database(request: pytest.FixtureRequest, tmp_path: Path) -> OpenDatabase:
    """Opens the database of an engine: a file, or a PostgreSQL."""
    return opener(request.param, tmp_path / "engine.sqlite3", request)


@pytest.fixture
async def database(open_database: OpenDatabase) -> AsyncGenerator[Database]:
    async with open_database() as database:
        yield database


@pytest.fixture
def store(database: Database) -> EngineStore:
    """An engine on the database."""
    return EngineStore(database)


@pytest.fixture
async def caller(redis_url: str) -> AsyncGenerator[Caller]:
    """Who asks workers for calls."""
    async with calling(redis_url) as caller:
        yield caller


@pytest.fixture
def times() -> EngineTimes:
    """The times of the test's engines: see `with_times`."""
    return EngineTimes()


@pytest.fixture
def start(tmp_path: Path, redis_url: str, model: Model, times: EngineTimes) -> Start:
    """Each engine has this test's folder, Redis, model and times."""

    def started(**changes: Any) -> AbstractAsyncContextManager[Engine]:
        usual = {"redis_url": redis_url, "model_url": model.url}
        return running_engine(settings(tmp_path, **usual | changes), times=times)

    return started


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that ends gives its lease up no more than one that was killed."""

    async def nothing(_: SqlEngines) -> None:
        pass

    monkeypatch.setattr(SqlEngines, "release", nothing)


@pytest.fixture
async def engine(start: Start) -> AsyncGenerator[Engine]:
    """An engine with the usual settings."""
    async with start() as engine:
        yield engine


@pytest.fixture
async def engines(start: Start, postgres_url: str) -> AsyncGenerator[tuple[Engine, Engine]]:
    """Two engines that share a database."""
    async with start(database_url=postgres_url) as here, start(database_url=postgres_url) as there:
        yield here, there


@pytest.fixture
async def bench(redis: Redis, redis_url: str) -> AsyncGenerator[Bench]:
    """A worker's side of the ledger, whose group is there."""
    with SyncRedis.from_url(redis_url) as thread:
        bench = Bench(redis, thread)
        await bench.open()
        yield bench
