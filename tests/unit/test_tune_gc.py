"""The collector of cyclic garbage does not stop a service in which many calls wait."""

import asyncio
import gc
from collections.abc import Generator

import pytest

from callstream_runtime.garbage import THRESHOLDS
from dialog_engine import settings
from dialog_engine.errors import ConfigurationError
from dialog_engine.main import serve
from plugins_mcp import main as worker
from plugins_mcp import wiring
from plugins_mcp.config import load_settings


@pytest.fixture(autouse=True)
def as_before() -> Generator[None]:
    thresholds = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.set_threshold(*thresholds)
    gc.freeze()  # as `tests/conftest.py` does: everything that is imported would be looked through again and again


def test_an_engine_begins_with_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> None:
        raise ConfigurationError("PORT: is wrong")

    monkeypatch.setattr(settings, "load_settings", wrong)
    with pytest.raises(SystemExit):
        serve()

    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000


async def test_a_worker_begins_with_that(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    async def run_worker(*_: object) -> None:
        seen.append((*gc.get_threshold(), gc.get_freeze_count()))

    def handle_no_signal(*_: object) -> None:
        pass

    monkeypatch.setattr(wiring, "run_worker", run_worker)
    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", handle_no_signal)
    monkeypatch.setenv("MCP_SERVER_ENDPOINT", "http://127.0.0.1:9/mcp")
    await worker.serve(load_settings())

    [(*thresholds, frozen)] = seen
    assert tuple(thresholds) == THRESHOLDS
    assert frozen > 10_000
