"""What `round_trip` measures: workers, Redis and MCP server as processes, the engine's components in this process."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from callstream_runtime.clock import RedisClock, RedisWatch
from callstream_runtime.connections import blocking_client, command_client
from callstream_runtime.loops import LISTEN_SECONDS
from deploy.local.ports import free_port
from dialog_engine.calls.executor import CallExecutor
from dialog_engine.calls.large_results import LargeResults
from dialog_engine.calls.mailbox import BLOCK_SECONDS, Mailbox
from dialog_engine.calls.recent_ends import RecentEnds
from dialog_engine.calls.subscriptions import BlockedCalls, Subscriptions
from dialog_engine.chat.outbox import DEFAULT_ROUTES
from dialog_engine.model import AssistantMessage, CallAnswered, ToolCall, Turn
from dialog_engine.observe.metrics import Metrics
from dialog_engine.observe.observed import ObservedCalls
from dialog_engine.peers.catalog import CatalogReader
from dialog_engine.relay.relay import Relay
from dialog_engine.storage.audit import AuditTrail
from dialog_engine.storage.calls import SqlCalls
from dialog_engine.storage.database import Database
from dialog_engine.storage.large_results import SqlLargeResults
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.storage.postgres import open_postgres
from dialog_engine.storage.sqlite_file import open_sqlite
from dialog_engine.storage.store import EngineDatabase, Store
from dialog_engine.storage.turns import SqlTurns
from plugins_contract.catalog import ToolEntry
from plugins_contract.encryption import CLEAR, Cipher
from plugins_contract.keys import Keys
from plugins_contract.ledger import EngineLedger
from plugins_contract.messages import new_id
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from plugins_contract.signing import RequestKeys
from tests.support.beginnings import begin
from tests.support.engine_stores import NotedFrees
from tests.support.processes import ROOT, Process, answers
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until

TIMEOUT_MS = 30_000
IN_WORKER, HTTP, STDIO = "development_echo", "demo", "demo_stdio"
"""The servers of a worker: its own echo, and the demo server over each transport."""
STDIO_SERVER = (sys.executable, "-m", "examples.demo_server", "--transport", "stdio")
MAX_BACKLOG = 20_000
SUBJECT_WINDOW = 100
POOL_SIZE = 8


@dataclass(frozen=True)
class Processes:
    """The other processes: Redis with an append-only file, the demo MCP server, workers."""

    redis_url: str
    mcp_url: str
    pids: dict[str, int]


@contextmanager
def processes(
    folder: Path,
    *,
    workers: int,
    concurrency: int,
    log: Mapping[str, str] = {"LOG_LEVEL": "WARNING"},
    more_servers: Mapping[str, object] = {},
) -> Generator[Processes]:
    """Run the processes for the duration of the block. Their data is in `folder`. `log`: settings of the workers."""
    with ExitStack() as stack:
        redis = LocalServer(embedded_binary(), folder)
        redis.start()
        stack.callback(redis.process.stop)
        mcp_port, health_port = free_port(), free_port()
        server = Process(
            [sys.executable, "-m", "examples.demo_server", "--port", str(mcp_port)],
            env={"DEMO_EFFECT_LOG": str(folder / "effects.log")},
            cwd=ROOT,
        )
        stack.callback(server.stop)
        server.wait_ready(lambda: answers(f"http://127.0.0.1:{mcp_port}/healthz"))
        mcp_url = f"http://127.0.0.1:{mcp_port}/mcp"
        http = {"type": "http", "url": mcp_url, "callstream": {"trust": True}}
        environment = {"DEMO_EFFECT_LOG": str(folder / "effects.log")}
        child = {"command": STDIO_SERVER[0], "args": STDIO_SERVER[1:], "cwd": str(ROOT), "env": environment}
        stdio = {**child, "callstream": {"trust": True}}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {HTTP: http, STDIO: stdio, **more_servers}}))
        pids = {"redis": redis.process.pid, "MCP server": server.pid}
        for number in range(workers):
            port = health_port if number == 0 else free_port()
            # In another folder, so that a `.env` of the repository is not read.
            worker = Process(
                [Path(sys.executable).with_name("plugins-mcp")],
                env={
                    "REDIS_URL": redis.url,
                    "MCP_CONFIG": str(folder / "mcp.json"),
                    "HEALTH_PORT": str(port),
                    "WORKER_CONCURRENCY": str(concurrency),
                    "DEVELOPMENT_ECHO": "true",
                    **log,
                },
                cwd=folder,
            )
            stack.callback(worker.stop)
            worker.wait_ready(lambda port=port: answers(f"http://127.0.0.1:{port}/readyz"))
            pids[f"worker {number + 1}"] = worker.pid
        yield Processes(redis.url, mcp_url, pids)


class Engine:
    """The engine's part of a tool call: commit it, await its result, commit the result."""

    def __init__(self, parts: "Parts", tools: Mapping[str, ToolEntry]) -> None:
        self._parts = parts
        self._tools = tools
        self._idle: list[Turn] = []

    @property
    def commits(self) -> int:
        """How many transactions were committed."""
        return self._parts.database.commits

    async def prepare(self, turns: int) -> Self:
        """Begin one turn per simultaneous call: a turn makes one call after the other."""
        self._idle = [await begin(self._parts.turns, "benchmark", None, "echo") for _ in range(turns)]
        return self

    async def call(self, text: str, server: str = HTTP) -> str:
        """One call, from its commit to the commit of its result. Returns the text of the result."""
        turn, tool = self._idle.pop(), self._tools[server]
        call = ToolCall("call_1", new_id(), tool.name, json.dumps({"text": text}))
        request = self._parts.executor.request(turn, call, tool, {"text": text})
        await self._parts.calls.add_round(turn, AssistantMessage("", (call,)), [request], {})
        async for update in self._parts.executor.run([request]):
            if isinstance(update, CallAnswered):
                await self._parts.calls.add_result(turn, call, update.outcome)
                self._idle.append(turn)
                return _text(update.outcome)
        raise RuntimeError("the call ended without an answer")


def _text(outcome: ToolOutcome) -> str:
    if outcome.state is not CallState.SUCCEEDED:
        raise RuntimeError(f"a call is {outcome.state}: {outcome.error}")
    return "".join(block.text for block in outcome.content if isinstance(block, TextBlock))


@dataclass(frozen=True)
class Parts:
    """The components of an engine that handle a tool call."""

    database: Database
    calls: SqlCalls
    turns: SqlTurns
    executor: CallExecutor
    mailbox: Mailbox
    catalog: CatalogReader
    watch: RedisWatch
    store: Store


@asynccontextmanager
async def engine_parts(
    redis_url: str, where: Path | str, *, cipher: Cipher = CLEAR, trail: type[AuditTrail] = AuditTrail
) -> AsyncGenerator[Parts]:
    """Run the engine's components, wired as in `dialog_engine.wiring`, on a SQLite file or the URI of a PostgreSQL."""
    waiting = Subscriptions()
    opened = open_sqlite(where, waiting.__len__) if isinstance(where, Path) else open_postgres(where, POOL_SIZE)
    keys, clock = Keys(), RedisClock()
    redis = command_client(redis_url)
    mail = blocking_client(redis_url, block_seconds=BLOCK_SECONDS)
    announcements = blocking_client(redis_url, block_seconds=LISTEN_SECONDS)
    async with redis, mail, announcements, opened as database:
        ledger = EngineLedger(redis, keys, cipher=cipher)
        this_engine = await database.engine_id()
        outbox = SqlOutbox(this := EngineDatabase(database, cipher, this_engine, keys))
        watch = RedisWatch(redis, keys, clock)
        catalog = CatalogReader(redis, announcements, keys, clock)
        blocked = BlockedCalls(watch, catalog)
        observer = ObservedCalls(Metrics())
        relay = Relay(
            outbox,
            redis,
            ledger,
            keys,
            DEFAULT_ROUTES,
            waiting,
            backlog_limit=MAX_BACKLOG,
            subject_window=SUBJECT_WINDOW,
            observer=observer,
            cipher=cipher,
        )
        mailbox = Mailbox(
            mail,
            redis,
            keys,
            this_engine,
            outbox,
            waiting,
            publisher=relay,
            cipher=cipher,
        )
        ended = RecentEnds(ledger, watch)
        executor = CallExecutor(
            ledger,
            waiting,
            mailbox,
            blocked,
            keys,
            clock,
            ended,
            LargeResults(SqlLargeResults(this), RequestKeys(), cipher, reachable=False),
            default_timeout_ms=TIMEOUT_MS,
            observer=observer,
            cipher=cipher,
        )
        await watch.ask()
        async with _running(watch.run, ended.run, mailbox.run, relay.run, catalog.run, blocked.run):
            store = Store(this, trail(b"key"), relay, NotedFrees())
            calls, turns = SqlCalls(store), SqlTurns(store)
            yield Parts(database, calls, turns, executor, mailbox, catalog, watch, store)


@asynccontextmanager
async def engine(
    redis_url: str,
    store: Path | str,
    *,
    servers: int = 3,
    cipher: Cipher = CLEAR,
    trail: type[AuditTrail] = AuditTrail,
) -> AsyncGenerator[Engine]:
    """An engine that knows the echo of each of the `servers`."""
    async with engine_parts(redis_url, store, cipher=cipher, trail=trail) as parts:
        await wait_until(lambda: len(_echoes(parts.catalog)) == servers, 20, what="the tool echo of each server")
        yield Engine(parts, _echoes(parts.catalog))


def _echoes(catalog: CatalogReader) -> dict[str, ToolEntry]:
    return {tool.server: tool for tool in catalog.tools() if tool.tool == "echo"}


@asynccontextmanager
async def _running(*loops: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Run the loops for the duration of the block. Raises the error of a loop that failed."""
    tasks = [asyncio.ensure_future(run()) for run in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
