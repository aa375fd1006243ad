"""`.env.example` is the list of everything that can be set."""

import re
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from dialog_engine.config import Settings as EngineSettings
from plugins_mcp.config import Settings as WorkerSettings
from tests.support.processes import ROOT

EXAMPLE = (ROOT / ".env.example").read_text()
LINE = re.compile(r"^# ([A-Z][A-Z0-9_]*)=(.*)$", re.MULTILINE)
SHOWN = dict(LINE.findall(EXAMPLE))
SERVICES: list[type[BaseModel]] = [EngineSettings, WorkerSettings]
FIELDS = [
    pytest.param(name.upper(), field, id=f"{service.__module__.partition('.')[0]}-{name.upper()}")
    for service in SERVICES
    for name, field in service.model_fields.items()
]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_every_setting_is_in_the_example(name: str, field: Any) -> None:
    assert name in SHOWN
    assert field.description, f"{name} says nothing about itself"


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_the_example_shows_the_default(name: str, field: Any) -> None:
    if isinstance(field.default, (str, int, float)) and not isinstance(field.default, bool):
        assert SHOWN[name].strip('"') == str(field.default)
    elif isinstance(field.default, bool):
        assert SHOWN[name] == str(field.default).lower()
    elif field.default not in (None, PydanticUndefined):
        assert SHOWN[name] == str(field.default)


def test_the_example_has_nothing_that_cannot_be_set() -> None:
    known = {name.upper() for service in SERVICES for name in service.model_fields}

    assert SHOWN.keys() <= known


def test_a_copy_of_the_example_changes_nothing() -> None:
    assert all(line.startswith("#") for line in EXAMPLE.splitlines() if line.strip())
