"""`.env.example` is the list of everything that can be set, and everything that can be set is read."""

import re
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from callstream_runtime.settings_sources import fields_of
from dialog_engine.llm.providers import Providers
from dialog_engine.settings import Settings as EngineSettings
from plugins_mcp.config import Settings as WorkerSettings
from tests.marks import promise
from tests.support.processes import ROOT

EXAMPLE = (ROOT / ".env.example").read_text()
LINE = re.compile(r"^# ([A-Z][A-Z0-9_]*)=(.*)$", re.MULTILINE)
ATTRIBUTE = re.compile(r"\.([a-z]\w+)")
SHOWN = dict(LINE.findall(EXAMPLE))
SERVICES: list[type[BaseModel]] = [EngineSettings, WorkerSettings]
FIELDS = [(name.upper(), field) for service in SERVICES for name, field in fields_of(service).items()]


def shown(default: Any) -> str:
    """A default as the example shows it."""
    return str(default).lower() if isinstance(default, bool) else str(default)


@promise("every setting is in .env.example")
def test_the_example_has_every_setting_and_nothing_else() -> None:
    assert {name for name, _ in FIELDS} == SHOWN.keys()


def test_every_setting_is_described() -> None:
    assert [name for name, field in FIELDS if not field.description] == []


def test_the_example_shows_the_defaults() -> None:
    defaults = [(name, field.default) for name, field in FIELDS if field.default not in (None, PydanticUndefined)]
    assert [(name, SHOWN[name].strip('"')) for name, _ in defaults] == [(name, shown(of)) for name, of in defaults]


def test_a_copy_of_the_example_changes_nothing() -> None:
    assert all(line.startswith("#") for line in EXAMPLE.splitlines() if line.strip())


@pytest.mark.parametrize(("service", "kind"), [("dialog-engine", EngineSettings), ("plugins-mcp", WorkerSettings)])
def test_every_setting_is_read_by_its_service(service: str, kind: type[BaseModel]) -> None:
    folders = [ROOT / "services" / name / "src" for name in (service, "callstream-runtime")]
    read = {name for each in folders for file in each.rglob("*.py") for name in ATTRIBUTE.findall(file.read_text())}
    by_name = {each.model_setting for each in Providers.kinds().values()}  # `ModelProvider.model` reads these
    assert fields_of(kind).keys() - read - by_name == set()
