"""What belongs to a provider of models besides its class: `tests/repo/test_settings.py` holds its variables."""

import pytest

from dialog_engine.config import load
from dialog_engine.llm.providers import PROVIDERS, Providers
from dialog_engine.llm.providers.base import ModelProvider
from dialog_engine.llm.settings import ModelSettings
from tests.support.processes import ROOT

KINDS = list(Providers.kinds().items())


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_the_tables_of_models_say_which_variables_a_provider_needs(name: str, kind: type[ModelProvider]) -> None:
    text = "\n".join((ROOT / document).read_text() for document in ("README.md", "docs/real-model.md"))
    rows = "".join(line for line in text.splitlines() if line.startswith("| "))
    assert {each for each in (*kind.selected_by, *kind.needs) if f"`{each.upper()}" not in rows} == set(), name


def test_the_example_names_the_providers_in_their_order() -> None:
    assert f"# The provider that answers: {', '.join(PROVIDERS)}." in (ROOT / ".env.example").read_text()


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_provider_is_used_when_what_selects_it_is_set(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: type[ModelProvider]
) -> None:
    for other in Providers.kinds().values():
        for setting in other.model_fields:
            monkeypatch.delenv(setting.upper(), raising=False)
    for setting in (*kind.selected_by, kind.model_setting, *kind.needs):
        url = setting.endswith(("_url", "_endpoint"))
        monkeypatch.setenv(setting.upper(), "https://model.example" if url else "a-value")
    settings = load(ModelSettings)
    assert (settings.default_model, settings.every_model) == (f"{name}:a-value", (f"{name}:a-value",))
