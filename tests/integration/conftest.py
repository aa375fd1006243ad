"""What the tests of whole parts have in common."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from dialog_engine.relay import publish_queue, relay
from tests.integration.demo import Demo
from tests.integration.engines import Model
from tests.support.engine_stores import DIALECTS, OpenDatabase, opener
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
async def caller(redis_url: str) -> AsyncGenerator[Caller]:
    """Who asks workers for calls."""
    async with calling(redis_url) as caller:
        yield caller


@pytest.fixture
def rare_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay finds nothing by polling within a test."""
    for module in (publish_queue, relay):
        monkeypatch.setattr(module, "POLL_SECONDS", 60.0)
