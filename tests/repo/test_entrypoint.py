"""When the engine's container uses the scripted model: where no real one is configured, in whichever way."""

import subprocess
from pathlib import Path

import pytest

from dialog_engine.llm.providers import Providers
from tests.marks import promise

SCRIPT = Path(__file__).parents[2] / "services" / "dialog-engine" / "docker-entrypoint.sh"
DEMO = "http://demo-model:8091/v1"


def model_used(folder: Path, **env: str) -> str:
    """The address and the kind of model that the engine is started with. `folder` is in the place of /run/secrets."""
    script = SCRIPT.read_text().replace("/run/secrets", str(folder))
    tell = ["sh", "-c", 'echo "${OPENAI_BASE_URL:-} ${MODEL_SCRIPTED:-}"']
    path = {"PATH": "/usr/bin:/bin"}
    argv = ["sh", "-c", script, "sh", *tell]
    return subprocess.run(argv, env=path | env, check=True, capture_output=True, text=True).stdout.strip()


NAMES = [name for kind in Providers.kinds().values() for name in kind.selected_by]


@promise("the scripted model is used only where no real one is configured")
def test_without_a_model_the_scripted_one_answers(tmp_path: Path) -> None:
    assert model_used(tmp_path, DEMO_MODEL_URL=DEMO) == f"{DEMO} true"
    assert model_used(tmp_path) == ""


@promise("the scripted model is used only where no real one is configured")
@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_is_configured_in_a_file_answers(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a value")
    assert model_used(tmp_path, DEMO_MODEL_URL=DEMO) == ""


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_is_configured_in_a_variable_answers(tmp_path: Path, name: str) -> None:
    assert DEMO not in model_used(tmp_path, DEMO_MODEL_URL=DEMO, **{name.upper(): "a value"})
