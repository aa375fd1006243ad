"""An engine and a worker that are started together: when the engine says that it is ready, and what it finds then."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from redis.asyncio import Redis

from callstream_runtime.clock import RedisClock
from callstream_runtime.connections import command_client
from deploy.local.ports import free_port
from dialog_engine.peers.catalog import CatalogReader
from plugins_contract.catalog import ServerCatalog, ServerState, ToolEntry
from plugins_contract.keys import Keys
from plugins_mcp.catalog import CatalogPublisher
from plugins_mcp.mcp import McpServers, ServerHealth
from plugins_mcp.mcp.server import McpServer
from tests.integration.engines import Model
from tests.marks import exhaustive, promise
from tests.support.processes import ROOT, Process, running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, exhaustive("real processes that wait for each other")]

BIN = Path(sys.executable).parent
DEMO = {
    "command": sys.executable,
    "args": ["-m", "examples.demo_server", "--transport", "stdio"],
    "env": {"PYTHONPATH": str(ROOT)},
}
NEVER = {"command": sys.executable, "args": ["-c", "raise SystemExit('no licence')"]}


def held_back(gate: Path) -> dict[str, Any]:
    """A server that does not begin before that file is there."""
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
    server = "import os, sys\nos.execv(sys.executable, [sys.executable, '-m', 'mcp_server_time'])"
    return {"command": sys.executable, "args": ["-c", wait + server]}


class Pair:
    """An engine and a worker on one Redis. Each is started by the test."""

    def __init__(self, folder: Path, redis_url: str, model: Model, stack: AsyncExitStack) -> None:
        self.folder, self.model = folder, model
        self.port = free_port()
        self.http = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=30, trust_env=False)
        self.redis_url = redis_url
        self._stack = stack
        self.gate = folder / "gate"
        stack.push_async_callback(self.http.aclose)

    async def start_engine(self, **settings: str) -> None:
        """Start it, and wait until it answers at all."""
        env = {"PORT": str(self.port), "OUTBOX_PATH": str(self.folder / "engine.sqlite3"), "OPENAI_API_KEY": "a key"}
        env |= {"OPENAI_BASE_URL": self.model.url, "SHUTDOWN_GRACE_SECONDS": "0.5"} | settings
        await self._start("dialog-engine", env, f"http://127.0.0.1:{self.port}/healthz")

    async def start_worker(self, **servers: Mapping[str, Any]) -> None:
        """Start it with these MCP servers."""
        config = self.folder / "mcp.json"
        config.write_text(json.dumps({"mcpServers": servers}))
        await self._start("plugins-mcp", {"MCP_CONFIG": str(config), "HEALTH_PORT": str(free_port())}, None)

    async def status(self) -> tuple[int, str, dict[str, str]]:
        """Code and status at /readyz, and the servers that are not ready."""
        answer = await self.http.get("/readyz")
        body = answer.json()
        return answer.status_code, body["status"], body["parts"]["serversNotReady"]

    async def becomes(self, *wanted: object) -> None:
        """Wait for that status."""

        async def is_so() -> bool:
            return await self.status() == wanted

        await wait_until(is_so, 30, what=f"the status {wanted}")

    async def offered(self) -> set[str]:
        """Ask a question: which servers' tools the model is offered."""
        await self.http.post("/v1/chat", json={"message": "Hi"})
        return {tool["function"]["name"].partition("__")[0] for tool in self.model.asked[-1].get("tools", [])}

    async def _start(self, name: str, env: dict[str, str], ready_url: str | None) -> Process:
        env |= {"REDIS_URL": self.redis_url}
        return await self._stack.enter_async_context(
            running([BIN / name], env=env, cwd=self.folder, ready_url=ready_url)
        )


@pytest.fixture
async def pair(tmp_path: Path, redis_url: str, model: Model) -> AsyncGenerator[Pair]:
    async with AsyncExitStack() as stack:
        yield Pair(tmp_path, redis_url, model, stack)


@promise("a question that comes the moment the engine is ready finds every tool")
async def test_a_question_that_comes_the_moment_the_engine_is_ready_finds_every_tool(pair: Pair) -> None:
    await pair.start_engine()
    assert await pair.status() == (503, "starting", {})
    await pair.start_worker(demo=DEMO, slow=held_back(pair.gate))
    await pair.becomes(503, "starting", {"slow": "connecting"})  # the other server is listed already

    pair.gate.touch()
    await pair.becomes(200, "ready", {})
    assert await pair.offered() == {"demo", "slow"}


@promise("the engine waits for tools at its start only, and for a bounded time")
async def test_a_server_that_does_not_start_is_named_and_holds_nothing_up(pair: Pair) -> None:
    await pair.start_engine(TOOLS_WAIT_SECONDS="3600")
    await pair.start_worker(demo=DEMO, never=NEVER)

    await pair.becomes(200, "ready", {"never": "failed"})
    assert await pair.offered() == {"demo"}
    [never] = [each for each in (await pair.http.get("/v1/tools")).json()["servers"] if each["server"] == "never"]
    assert never["error"] == "the server process exited with code 1 during the handshake"


# --- What lies beneath: of a worker that appears, all servers are seen or none ---


class Servers:
    """Many MCP servers that were all listed before Redis could be reached."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def trusted(self) -> list[McpServer]:
        return []

    def health(self) -> dict[str, ServerHealth]:
        return dict.fromkeys(self._names, ServerHealth(ServerState.READY))

    def catalogs(self) -> dict[str, ServerCatalog]:
        return {
            name: ServerCatalog(
                server=name, tools=(ToolEntry(name=f"{name}__t", server=name, tool="t", input_schema={}),)
            )
            for name in self._names
        }


@promise("a question that comes the moment the engine is ready finds every tool")
@pytest.mark.parametrize("known", [0, 20, 40], ids=["none known", "half known", "all known"])
async def test_of_a_worker_that_appears_all_servers_are_seen_with_their_tools_or_none(
    redis: Redis, redis_url: str, known: int
) -> None:
    # Long names: a server reads 16 KB at once, and may serve others before it reads on.
    names = [f"server{number:02}".ljust(600, "x") for number in range(40)]
    keys, clock = Keys(), RedisClock()
    worker_redis = command_client(redis_url)
    seen: set[tuple[int, int]] = set()
    for _ in range(20):
        await redis.flushall()
        if known:  # by workers that are gone
            await cast("Any", redis.sadd(keys.catalog, *names[:known]))
            for name in names[:known]:
                empty: Any = b'{"server":"%s"}' % name.encode()
                await cast("Any", redis.hset(keys.catalog_of(name), "catalog", empty))
        reader = CatalogReader(redis, redis, keys, clock)
        servers = cast("McpServers", Servers(names))
        publisher = CatalogPublisher(worker_redis, keys, servers, clock, worker="w", changed=asyncio.Event())
        publishing = asyncio.create_task(publisher.publish())
        while not publishing.done():
            await reader.refresh()
            seen.add((sum(view.workers for view in reader.servers), len(reader.tools())))
        await publishing
    await worker_redis.aclose()
    assert seen <= {(0, 0), (40, 40)}
