"""The version is in one place, the list of changes begins with it, and two builds of one version can be told apart."""

import re
import tomllib

import pytest

from callstream_runtime import version
from dialog_engine.observe.metrics import Metrics
from dialog_engine.storage import schemas
from tests.support.processes import ROOT


def test_all_packages_have_one_version_and_the_changes_begin_with_it() -> None:
    for service in (ROOT / "services").iterdir():
        content = tomllib.loads((service / "pyproject.toml").read_text())
        assert "version" in content["project"]["dynamic"]
        assert (service / content["tool"]["hatch"]["version"]["path"]).resolve() == ROOT / (
            "services/callstream-runtime/src/callstream_runtime/version.py"
        )
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[0] == version.__version__
    assert version.__version__ == schemas.RELEASE


def test_a_build_is_named_by_its_commit_or_by_a_digest_of_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    version.commit.cache_clear()
    monkeypatch.delenv("CALLSTREAM_COMMIT", raising=False)
    engine, worker = version.commit("dialog_engine"), version.commit("plugins_mcp")
    assert re.fullmatch(r"src-[0-9a-f]{12}", engine)
    assert engine != worker, "other code is another build"
    version.commit.cache_clear()
    monkeypatch.setenv("CALLSTREAM_COMMIT", "abc1234")
    assert version.commit("dialog_engine") == "abc1234"
    version.commit.cache_clear()

    text, _ = Metrics({"version": "1", "commit": "abc1234", "schema": "sqlite-13"}).text()
    assert 'dialog_build_info{commit="abc1234",python=' in text.decode()


def test_both_images_are_given_their_commit() -> None:
    for dockerfile in (ROOT / "services").glob("*/Dockerfile"):
        assert "ARG COMMIT=\nENV CALLSTREAM_COMMIT=${COMMIT}\n" in dockerfile.read_text()
