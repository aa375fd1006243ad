"""Whether conversations keep their pages: the Playwright server, several workers, and then one of them is killed.

    python -m benchmarks.sessions --playwright node_modules/@playwright/mcp/cli.js [--browser /usr/bin/chromium]
                                  [--workers 3] [--conversations 20] [--steps 10]

Real processes: Redis, the workers, a browser for each conversation. Each step opens a page or reads the one that is
open: it must be the one that this conversation opened last. After the kill each reads once more: the page, or "state
lost".
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import psutil

from benchmarks.arguments import at_least
from callstream_runtime.clock import RedisClock
from callstream_runtime.pool_directory import PoolDirectory
from plugins_contract.encryption import CLEAR
from plugins_contract.ledger import EngineLedger
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from tests.support.processes import Process
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until
from tests.support.working import Caller, calling

LONGEST = 300.0
"""Seconds that one step may take, on a machine with twenty browsers."""


class Pages(BaseHTTPRequestHandler):
    """A page that shows its own path."""

    def do_GET(self) -> None:
        """Answer with the path."""
        body = f"<title>page</title><h1>{self.path.strip('/')}</h1>".encode()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name of the base class
        """Log nothing."""


class Conversations:
    """The engine's side."""

    def __init__(self, caller: Caller, address: str) -> None:
        self._caller = caller
        directory = PoolDirectory(caller.redis, caller.keys, RedisClock())
        self._engine = EngineLedger(caller.redis, caller.keys, cipher=CLEAR, pools=directory)
        self._address = address
        self.found = Counter[str]()

    async def run(self, name: str, steps: int) -> None:
        """Open a page and read it, in turn."""
        for step in range(0, steps, 2):
            page = f"{name}-{step}"
            opened = await self._ask(name, "browser_navigate", url=f"{self._address}/{page}")
            self.found["opened" if opened.state is CallState.SUCCEEDED else _why(opened)] += 1
            await self.read(name, page)

    async def read(self, name: str, page: str) -> None:
        """Read the page that is open."""
        outcome = await self._ask(name, "browser_snapshot")
        text = " ".join(block.text for block in outcome.content if isinstance(block, TextBlock))
        if outcome.state_lost:
            self.found["state lost, told"] += 1
        elif outcome.state is not CallState.SUCCEEDED:
            self.found[_why(outcome)] += 1
        else:
            mixed = "mixed" if "conversation" in text else "page lost"
            self.found["right page" if page in text else mixed] += 1

    async def _ask(self, name: str, tool: str, **arguments: Any) -> ToolOutcome:
        request = msgspec.structs.replace(
            await self._caller.request(expires_in_ms=int(LONGEST * 1000)),
            session_id=name,
            server="browser",
            tool=tool,
            arguments=arguments,
        )
        await self._engine.enqueue(request)
        return await self._caller.outcome(request, LONGEST)


def _why(outcome: ToolOutcome) -> str:
    return f"{outcome.state}: {outcome.error.message[:200] if outcome.error else ''}"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--playwright", required=True, type=Path, help="cli.js of the npm package @playwright/mcp")
    parser.add_argument("--browser", default="/usr/bin/chromium")
    parser.add_argument("--workers", type=at_least(2), default=3)
    parser.add_argument("--conversations", type=at_least(1), default=20)
    parser.add_argument("--steps", type=at_least(2), default=10)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "redis").mkdir()
        redis = LocalServer(embedded_binary(), folder / "redis")
        redis.start()
        stack.callback(redis.stop)
        pages = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        stack.callback(pages.shutdown)
        Thread(target=pages.serve_forever, daemon=True).start()
        config = _config(folder, options)
        env = {**os.environ, "REDIS_URL": redis.url, "MCP_CONFIG": str(config), "HEALTH_PORT": "0"}
        program = Path(sys.executable).with_name("plugins-mcp")
        workers = [Process([program], env=env) for _ in range(options.workers)]
        for each in workers:
            stack.callback(each.close)
        address = f"http://127.0.0.1:{pages.server_port}"
        measured = asyncio.run(_measure(redis.url, address, workers, options))
    print("", measured, sep="\n")  # after what the processes wrote


def _config(folder: Path, options: argparse.Namespace) -> Path:
    arguments = ["--headless", "--isolated", "--no-sandbox", f"--executable-path={options.browser}"]
    server = {
        "command": "node",
        "args": [str(options.playwright.resolve()), *arguments],
        "cwd": str(folder),
        "callstream": {"session": "conversation", "maxSessionsPerSubject": 32, "connectTimeoutMs": 120_000},
    }
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"browser": server}}))
    return path


async def _measure(url: str, address: str, workers: list[Process], options: argparse.Namespace) -> str:
    async with calling(url) as caller:

        async def ready() -> bool:
            rows = await caller.redis.hgetall(caller.keys.pools)
            listed = await caller.redis.hexists(caller.keys.catalog_of("browser"), "version")
            streams = [caller.keys.requests_of(msgspec.json.decode(row)["own"]) for row in rows.values()]
            return listed and len(streams) == options.workers == await caller.redis.exists(*streams)

        await wait_until(ready, LONGEST)
        conversations = Conversations(caller, address)
        names = [f"conversation{number:02}" for number in range(options.conversations)]
        began = time.monotonic()
        await asyncio.gather(*(conversations.run(name, options.steps) for name in names))
        took = time.monotonic() - began
        before = dict(conversations.found)
        conversations.found.clear()
        killed = [*psutil.Process(workers[0].pid).children(recursive=True)]
        os.kill(workers[0].pid, signal.SIGKILL)
        page = f"-{(options.steps - 1) // 2 * 2}"
        await asyncio.gather(*(conversations.read(name, name + page) for name in names))
        _, alive = psutil.wait_procs(killed, 30)
        after = dict(conversations.found)
        return f"{took:.0f} s: {before}\nafter the kill: {after}; {len(alive)} of its processes left"


if __name__ == "__main__":
    main()
