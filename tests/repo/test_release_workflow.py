"""A release: its workflow, its bill of materials and its version, and no secret in its files."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from callstream_runtime import version
from deploy import supply_chain
from dialog_engine.observe.metrics import Metrics
from dialog_engine.storage import schemas
from tests.marks import promise
from tests.support.processes import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
TEXT = WORKFLOW.read_text()
JOBS: dict[str, Any] = yaml.safe_load(TEXT)["jobs"]


def test_it_is_a_workflow() -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [checker, "--builtin-schema", "vendor.github-workflows", WORKFLOW], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_it_needs_no_secret_and_each_job_has_the_least_rights() -> None:
    assert "secrets." not in TEXT
    assert set(re.findall(r"ghcr\.io/(\S+)", TEXT)) == {"${{"}, "the registry is that of whoever runs it"
    assert yaml.safe_load(TEXT)["permissions"] == {"contents": "read"}
    assert JOBS["image"]["permissions"] == {"contents": "read", "packages": "write", "id-token": "write"}


def test_both_images_are_built_for_both_platforms_described_and_signed() -> None:
    built = {each["name"]: each for each in JOBS["image"]["strategy"]["matrix"]["include"]}
    assert {ROOT / each["dockerfile"] for each in built.values()} == set((ROOT / "services").glob("*/Dockerfile"))
    assert "FROM runtime AS worker\n" in (ROOT / built["worker"]["dockerfile"]).read_text()
    steps = {step.get("id") or step.get("uses", step.get("name")): step for step in JOBS["image"]["steps"]}
    options = steps["build"]["with"]
    assert options["platforms"] == "linux/amd64,linux/arm64"
    assert options["sbom"]
    assert options["provenance"] == "mode=max"
    assert options["build-args"] == "COMMIT=${{ github.sha }}"
    assert steps["Sign what was built"]["run"] == 'cosign sign --yes "$IMAGE@$DIGEST"'


def test_the_drill_is_run_before_images_are_built() -> None:
    assert JOBS["image"]["needs"] == ["check", "drill"]
    upgrades = "make test-all PROCESSES=0 ARGS=tests/integration/test_compose_upgrade.py"
    assert [step.get("run") for step in JOBS["drill"]["steps"]][1:] == ["make drill", upgrades]


def test_the_tag_must_be_the_version() -> None:
    [step] = [each for each in JOBS["check"]["steps"] if each.get("name") == "The tag is the version"]
    script = step["run"].replace("services/", f"{ROOT}/services/")
    for tag, code in (("v" + _version(), 0), ("v9.9.9", 1)):
        done = subprocess.run(["bash", "-c", script], env={"GITHUB_REF_NAME": tag}, capture_output=True, check=False)
        assert done.returncode == code, tag


def _version() -> str:
    return re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]


# --- What a release is checked for: its bill of materials, and secrets in its files ---


UV = shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")


def test_the_bill_of_materials_has_every_library_that_is_released_and_none_of_development(tmp_path: Path) -> None:
    if not Path(UV).exists():
        pytest.skip("there is no uv")
    supply_chain.write_sbom(UV, tmp_path / "sbom.json")
    bill = json.loads((tmp_path / "sbom.json").read_text())
    names = {component["name"] for component in bill["components"]}
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert names >= {"cryptography", "fastapi", "mcp", "openai", "psycopg", "redis", "boto3"}
    assert {"preact", "@preact/signals", "markdown-it", "lowlight", "temml"} <= names
    [signals] = [component for component in bill["components"] if component["name"] == "@preact/signals"]
    assert signals["purl"] == f"pkg:npm/%40preact/signals@{signals['version']}"
    assert not names & {"esbuild", "pytest", "hypothesis", "ruff", "detect-secrets"}


@promise("a secret in a file is found before a release")
def test_a_secret_in_a_file_is_found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    values = ["AKIA" + "IOSFODNN7EXAMPL3", "ghp_" + "a1B2" * 9, "-----BEGIN RSA " + "PRIVATE KEY-----", "nothing"]
    paths = [tmp_path / f"config{number}.txt" for number in range(len(values))]
    for path, value in zip(paths, values, strict=True):
        path.write_text(f'value = "{value}"\n')
    assert supply_chain.scan_for_secrets([str(path) for path in paths]) == 1
    found = capfd.readouterr().out
    assert [path.name in found for path in paths] == [True, True, True, False]
    assert supply_chain.scan_for_secrets([str(paths[-1])]) == 0


def test_the_page_has_the_licence_of_each_package_that_it_has_parts_of_and_a_lock_file_without_hosts() -> None:
    packages = json.loads(supply_chain.PAGE_PACKAGES.read_text())
    texts = supply_chain.PAGE_PACKAGES.with_name("LICENSES.txt").read_text()
    locked = json.loads((ROOT / "services/dialog-engine/web/package-lock.json").read_text())["packages"]
    for package in packages:
        assert f"{package['name']} {package['version']} ({package['license']})" in texts
        assert locked[f"node_modules/{package['name']}"]["version"] == package["version"]
    assert "Permission is hereby granted" in texts
    assert not [name for name, package in locked.items() if "resolved" in package]
    assert all("integrity" in package for name, package in locked.items() if name)


def test_generated_files_and_recorded_conversations_are_not_scanned() -> None:
    files = supply_chain.released_files()
    assert "README.md" in files
    assert not [path for path in files if path == "uv.lock" or path.startswith("tests/corpus/")]


# --- The version is in one place, and two builds of one version can be told apart ---


def test_all_packages_have_one_version_and_the_changes_begin_with_it() -> None:
    for service in (ROOT / "services").iterdir():
        content = tomllib.loads((service / "pyproject.toml").read_text())
        assert "version" in content["project"]["dynamic"]
        assert (service / content["tool"]["hatch"]["version"]["path"]).resolve() == ROOT / (
            "services/callstream-runtime/src/callstream_runtime/version.py"
        )
    assert _version() == version.__version__ == schemas.RELEASE


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
