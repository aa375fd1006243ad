"""`python -m tests.mcp_servers`: published MCP servers, each tried through the API of an engine.

It installs them by npm and uv into a folder, and runs every cell of the table in docs/mcp.md with each. With `--write`
the table is written. It ends with 1 if a cell did not hold.
"""

import argparse
import asyncio
import base64
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec

from deploy.local.ports import free_port
from tests.mcp_servers.cells import CELLS, NotOfferedError
from tests.mcp_servers.product import Remote, product
from tests.mcp_servers.published import SERVERS, Published
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "mcp.md"
BEGIN, END = "<!-- servers: python -m tests.mcp_servers --write -->", "<!-- end of servers -->"
PIXEL = base64.b64decode(
    b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SECONDS = 8
"""The time of each call: those to servers that hang take it all."""
PLACE = re.compile(r"\{(work|port|page|browser|python)\}")
Row = dict[str, str]


class Page(BaseHTTPRequestHandler):
    """A web page for servers that fetch."""

    def do_GET(self) -> None:
        """Answer with the page; anything but the root is not found."""
        found = self.path == "/"
        body = b"<html><head><title>A page</title></head><body><h1>Hello</h1><p>A short text.</p></body></html>"
        self.send_response(200 if found else 404)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name of the base class
        """Log nothing."""


class Protocols(logging.Handler):
    """The versions of the protocol that the worker has logged."""

    version = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the last one."""
        if found := re.search(r"connected, protocol ([\d-]+)", record.getMessage()):
            self.version = found[1]


def main() -> int:
    """Try them, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("server", nargs="*", help="only these; by default all")
    parser.add_argument("--folder", type=Path, help="where the packages are, or are installed to; else it is removed")
    parser.add_argument("--write", action="store_true", help=f"write the table in {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    chosen = [each for each in SERVERS if not options.server or each.name in options.server]
    with ExitStack() as stack:
        folder: Path = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pages = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        Thread(target=pages.serve_forever, daemon=True).start()
        stack.callback(pages.shutdown)
        rows = {each.name: _tried(each, folder, f"http://127.0.0.1:{pages.server_port}/") for each in chosen}
    if options.write:
        _write(rows)
    broken = [f"{name}: {cell}: {text}" for name, row in rows.items() for cell, text in row.items() if "✗" in text]
    print(*broken, f"{len(rows)} servers, {len(broken)} cells did not hold", sep="\n")
    return bool(broken)


def _tried(server: Published, folder: Path, page: str) -> Row:
    """Its row."""
    row: Row = {"server": f"`{server.name}`"}
    try:
        row["package"], scripts = _installed(server, folder)
        with tempfile.TemporaryDirectory() as name:
            asyncio.run(_run(_filled(server, _places(Path(name), page)), scripts, Path(name), row))
    except Exception as error:  # noqa: BLE001 -- one server that cannot be tried is a row that says so
        row["connect"] = f"✗ {error!r}"
    print(" | ".join(row.values()), flush=True)
    return row


async def _run(server: Published, scripts: Path, folder: Path, row: Row) -> None:
    command = [str(scripts / server.command[0]), *server.command[1:]]
    protocols = Protocols()
    logging.getLogger("plugins_mcp").addHandler(protocols)
    logging.getLogger("plugins_mcp").setLevel(logging.INFO)
    options = {"callstream": {"approval": "never", "timeoutMs": SECONDS * 1000}}
    remote = None
    if server.transport == "stdio":
        entry: dict[str, Any] = {"command": command[0], "args": command[1:], "env": server.env, "cwd": str(folder)}
    else:
        port = server.env["PORT"]
        remote = Remote(command, os.environ | server.env)
        entry = {"type": server.transport, "url": f"http://127.0.0.1:{port}{server.path}"}
    async with product(entry | options, server.name, remote, folder) as tried:
        for name, cell in CELLS.items():
            try:
                row[name] = await cell(tried, server)
            except NotOfferedError:
                row[name] = "·"
            except Exception as error:  # noqa: BLE001 -- a cell that does not hold says so in the table
                row[name] = f"✗ {error!r}"
                print(f"{server.name}: {name}: {error!r}", flush=True)
            if name == "connect":
                row["protocol"] = protocols.version
                if "✗" in row[name]:
                    return


def _installed(server: Published, folder: Path) -> tuple[str, Path]:
    """What the table says of the package, and where its scripts are."""
    kind, _, names = server.package.partition(":")
    if not kind:
        return "this repository", ROOT
    name, *others = names.split()
    home = folder / kind / re.sub(r"\W", "_", name)
    done = home / "installed"
    if not done.exists():
        home.mkdir(parents=True, exist_ok=True)
        for step in _steps(kind, home, [name, *others]):
            subprocess.run(step, check=True, capture_output=True, timeout=600)
        done.touch()
    scripts = home / "node_modules" / ".bin" if kind == "npm" else home / "bin"
    return f"{kind} {name} {_version(kind, home, name)}", scripts


def _steps(kind: str, home: Path, packages: list[str]) -> Iterable[list[str]]:
    if kind == "npm":
        return [["npm", "install", "--no-fund", "--no-audit", "--ignore-scripts", "--prefix", str(home), *packages]]
    uv = shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")
    return [
        [uv, "venv", "-q", "--allow-existing", str(home)],
        [uv, "pip", "install", "-q", "--python", str(home / "bin" / "python"), *packages],
    ]


def _version(kind: str, home: Path, name: str) -> str:
    if kind == "npm":
        return json.loads((home / "node_modules" / name / "package.json").read_text())["version"]
    (found,) = home.glob(f"lib/*/site-packages/{name.replace('-', '_')}-*.dist-info")
    return found.name.removesuffix(".dist-info").rpartition("-")[2]


def _places(work: Path, page: str) -> dict[str, str]:
    (work / "notes.txt").write_text("A short text.\n")
    (work / "picture.png").write_bytes(PIXEL)
    repository = work / "repository"
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "The first"], check=True)
    browser = shutil.which("chromium") or ""
    return {"work": str(work), "port": str(free_port()), "page": page, "browser": browser, "python": sys.executable}


def _filled(server: Published, places: dict[str, str]) -> Published:
    text = PLACE.sub(lambda found: places[found[1]], msgspec.json.encode(server).decode())
    return msgspec.json.decode(text, type=Published)


def _write(rows: dict[str, Row]) -> None:
    columns = ["server", "package", "protocol", *CELLS]
    lines = [columns, ["---"] * len(columns), *([row.get(name, "") for name in columns] for row in rows.values())]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    sys.exit(main())
