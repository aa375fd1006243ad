"""npm's `server-everything`: an MCP server that other people wrote, in another language."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "@modelcontextprotocol/server-everything"
SCRIPT = Path("node_modules", *PACKAGE.split("/"), "dist", "index.js")
INSTALL_SECONDS = 90


def everything_server() -> str:
    """The path of its script: `EVERYTHING_SERVER`, or installed into a cache of this user. Else the test is skipped."""
    path, why_not = _find()
    if path is None:
        pytest.skip(why_not)
    return path


@cache
def _find() -> tuple[str | None, str]:
    """The script, or why there is none; looked for once."""
    if shutil.which("node") is None:
        return None, "needs node"
    if script := os.environ.get("EVERYTHING_SERVER"):
        return script, ""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callstream-tests"
    if not (folder / SCRIPT).is_file():
        if shutil.which("npm") is None:
            return None, "needs npm, or EVERYTHING_SERVER"
        folder.mkdir(parents=True, exist_ok=True)
        argv = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder), PACKAGE]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return None, "npm install took too long"
        if done.returncode:
            return None, f"npm cannot install {PACKAGE}: {done.stderr.strip()[-300:]}"
    return str(folder / SCRIPT), ""
