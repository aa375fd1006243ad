"""The workflow of a release: valid, for two platforms, with bill of materials and signature, and no account."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

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
