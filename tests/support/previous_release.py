"""The services of the previous release, run from its source code in the history of this repository.

They run with the packages that are installed now, under their own version. A clone without history cannot run them.
"""

import io
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

from tests.support.processes import ROOT

RELEASE = "795934bb42c5ce947b23b571b035304ef409f9dd"
"""The commit of the previous release. Set it to the tag of each release, when the next one is begun."""


def missing() -> str | None:
    found = subprocess.run(
        ["git", "cat-file", "-e", f"{RELEASE}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    return None if found.returncode == 0 else f"the history of this clone does not have {RELEASE}"


class PreviousRelease:
    """Its programs, from the source code in a folder."""

    def __init__(self, folder: Path) -> None:
        archive = subprocess.run(
            ["git", "archive", RELEASE, "services"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        for project in folder.glob("services/*/pyproject.toml"):
            _name(project)
        self._path = ":".join(map(str, folder.glob("services/*/src")))
        self.engine = self._program("dialog_engine")
        self.worker = self._program("plugins_mcp")

    def _program(self, package: str) -> list[str]:
        return ["env", f"PYTHONPATH={self._path}", sys.executable, "-c", f"from {package}.main import main; main()"]


def _name(project: Path) -> None:
    """Give the sources of a project the metadata of their version, which a program finds before those installed."""
    named = tomllib.loads(project.read_text())["project"]
    metadata = project.parent / "src" / f"{named['name'].replace('-', '_')}-{named['version']}.dist-info"
    metadata.mkdir()
    text = f"Metadata-Version: 2.1\nName: {named['name']}\nVersion: {named['version']}\n"
    (metadata / "METADATA").write_text(text)
