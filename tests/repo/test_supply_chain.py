"""What a release is checked for: its bill of materials, and secrets in its files."""

import json
import shutil
from pathlib import Path

import pytest

from deploy import supply_chain
from tests.marks import promise
from tests.support.processes import ROOT

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
