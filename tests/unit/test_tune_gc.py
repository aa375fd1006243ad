"""The collector of cyclic garbage does not stop an engine in which many calls wait."""

import gc
from collections.abc import Generator

import pytest

from dialog_engine import config
from dialog_engine.errors import ConfigurationError
from dialog_engine.main import serve, tune_gc


@pytest.fixture(autouse=True)
def as_before() -> Generator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_full_collections_are_rare_and_leave_alone_what_was_loaded() -> None:
    tune_gc()

    young, middle, old = gc.get_threshold()
    assert young * middle * old >= 10_000_000
    assert young * middle <= 100_000, "the others stay short"
    assert gc.get_freeze_count() > 10_000


def test_an_engine_begins_with_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> None:
        raise ConfigurationError("PORT: is wrong")

    monkeypatch.setattr(config, "load_settings", wrong)
    with pytest.raises(SystemExit):
        serve()

    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
