"""Node and packages of npm, for tests of clients: a test is skipped where one of them is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NEEDED = 22
"""The oldest Node that the newest packages run on."""


def node_binary() -> str:
    """Node. `NODE` names another binary than the one on the path."""
    binary = os.environ.get("NODE") or shutil.which("node")
    found = binary and subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    if not binary or int(str(found).removeprefix("v").partition(".")[0]) < NEEDED:
        pytest.skip(f"needs Node {NEEDED}: install it, or name its binary in NODE")
    return binary


def install(folder: Path, *packages: str) -> None:
    """The newest packages of these versions, kept in the folder for the next run."""
    if (folder / "node_modules").exists():
        return
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm: install it")
    (folder / "package.json").write_text('{"private": true}')
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages]
    # Of a package that needs a newer Node than npm runs on, npm installs an older version.
    path = f"{Path(node_binary()).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot fetch {' '.join(packages)}: {done.stderr[-200:]}")
