"""`make release-check`: what a release contains, its known vulnerabilities, and secrets in its files.

Writes `dist/callstream.cdx.json`, a software bill of materials (CycloneDX 1.5) of the locked dependencies, the optional
ones included and those for development not, and of the packages of which the built page has parts. The advisories come
from the service that pip-audit asks (PyPI's, or with `ADVISORIES=osv` that of OSV); where it does not answer the audit
is skipped, and the output says so.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).parents[1]
PAGE_PACKAGES = ROOT / "services/dialog-engine/src/dialog_engine/http/web/packages.json"
SBOM = ROOT / "dist" / "callstream.cdx.json"
PIP_AUDIT = "pip-audit==2.10.1"
BASELINE = "deploy/.secrets.baseline"
_EXPORT = ("export", "--frozen", "--quiet", "--no-dev", "--all-packages", "--all-extras", "--no-emit-workspace")
_NOT_REACHED = re.compile(
    r"ConnectionError|ConnectTimeout|Max retries exceeded|Name or service not known|ServiceError|Failed to fetch"
)
_GENERATED = re.compile(
    r"(^|/)(uv\.lock|package-lock\.json)$|^tests/corpus/|^services/dialog-engine/src/dialog_engine/http/web/"
)


def write_sbom(uv: str, path: Path = SBOM) -> None:
    """Write the bill of materials."""
    path.parent.mkdir(parents=True, exist_ok=True)
    format_ = ("--format", "cyclonedx1.5", "--preview-features", "sbom-export")
    subprocess.run(
        [uv, *_EXPORT, *format_, "--output-file", str(path)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    bill = json.loads(path.read_text())
    bill["components"] += [_component(**package) for package in json.loads(PAGE_PACKAGES.read_text())]
    path.write_text(json.dumps(bill, indent=2) + "\n")


def _component(name: str, version: str, license: str) -> dict[str, Any]:  # noqa: A002 - the name of the field
    url = f"pkg:npm/{quote(name)}@{version}"
    return {
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": version,
        "purl": url,
        "licenses": [{"license": {"id": license}}],
    }


def audit(uv: str, service: str) -> int:
    """Ask for known vulnerabilities of the locked dependencies. Returns 0 when there are none or nobody answers."""
    requirements = ROOT / "dist" / "requirements.txt"
    with requirements.open("w") as file:
        subprocess.run([uv, *_EXPORT, "--no-hashes", "--no-annotate"], cwd=ROOT, check=True, stdout=file)
    command = [
        uv,
        "tool",
        "run",
        "--quiet",
        PIP_AUDIT,
        "--disable-pip",
        "--no-deps",
        "--vulnerability-service",
        service,
    ]
    done = subprocess.run([*command, "--requirement", str(requirements)], check=False, capture_output=True, text=True)
    if done.returncode and _NOT_REACHED.search(done.stderr):
        print(
            f"release-check: vulnerabilities are not checked, the advisories of {service} cannot be reached from here"
        )
        return 0
    print(done.stdout + done.stderr, end="")
    return done.returncode


def scan_for_secrets(paths: list[str]) -> int:
    """Look for secrets in these files. Returns 0 when there are none but those that the baseline names as examples."""
    scanner = Path(sys.executable).with_name("detect-secrets-hook")
    return subprocess.run([scanner, "--baseline", BASELINE, *paths], cwd=ROOT, check=False).returncode


def released_files() -> list[str]:
    """The files under version control that people write."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in listed.splitlines() if not _GENERATED.search(path) and (ROOT / path).is_file()]


def main() -> None:
    """Do all three; exits with 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uv", default="uv", help="the uv to use")
    options = parser.parse_args()
    write_sbom(options.uv)
    print(f"release-check: {SBOM.relative_to(ROOT)} is written")
    found = [audit(options.uv, os.environ.get("ADVISORIES", "pypi")), scan_for_secrets(released_files())]
    sys.exit(1 if any(found) else 0)


if __name__ == "__main__":
    main()
