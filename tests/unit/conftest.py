"""What the tests of settings share."""

from pathlib import Path

import pytest

from callstream_runtime.settings_sources import fields_of
from dialog_engine.settings import Settings as EngineSettings
from plugins_mcp.config import Settings as WorkerSettings


@pytest.fixture
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No `.env`, and none of the variables of the services."""
    monkeypatch.chdir(tmp_path)
    for kind in (EngineSettings, WorkerSettings):
        for name in fields_of(kind):
            monkeypatch.delenv(name.upper(), raising=False)
