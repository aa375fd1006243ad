"""What the tests of the engine's adapters share: stand-ins for what lies on the other side of a port."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import uvicorn.server
from fastapi import FastAPI
from redis import Redis as SyncRedis

from callstream_runtime.connection_limits import ConnectionLimits
from dialog_engine.chat.outbox import TOOL_CALL_FINISHED, OutboxRow
from dialog_engine.chat.ownership import OwnershipTimes
from dialog_engine.http.app import Server, server_of
from dialog_engine.main import bind, bind_operations
from dialog_engine.settings import Settings
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.wiring.engine import build_app
from dialog_engine.wiring.times import EngineTimes
from plugins_contract.catalog import ServerCatalog, ServerHeartbeat, ServerState, ToolEntry
from plugins_contract.keys import Keys
from plugins_contract.ledger import NEVER_OFFERED
from plugins_contract.messages import EVENT_TYPE, ToolCallRequested, encode_request
from tests.support.fakes.stores import MemoryStore
from tests.support.requests import ENGINE, requested
from tests.support.settings import settings_of
from tests.support.waiting import wait_until


class Hasty:
    """asyncio for Uvicorn, which looks ten times a second whether it shall end: in tests a hundred times."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


uvicorn.server.asyncio = Hasty()  # pyright: ignore[reportPrivateImportUsage]
MINUTE_MS = 60_000


@asynccontextmanager
async def at_work(*loops: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[list[asyncio.Task[None]]]:
    """Run endless loops for as long as the block; one that fails fails the test."""
    tasks = [asyncio.create_task(run()) for run in loops]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [each for each in ended if isinstance(each, Exception)]
        if failures:
            raise ExceptionGroup("loops failed", failures)


def request(deadline: int, *, subject: str = "somebody", engine: str = ENGINE) -> ToolCallRequested:
    return requested(engine=engine, deadline=deadline, subject=subject)


class MemoryOutbox(SqlOutbox):
    """The outbox table in memory. What was read of it, marked and postponed is noted, the delays in milliseconds."""

    def __init__(self) -> None:
        self.store = MemoryStore(ENGINE)
        super().__init__(self.store.store)
        self.sql = self.store.memory.rows
        self.marked: list[OutboxRow] = []
        self.postponed: list[tuple[int, str, int]] = []
        self.looks = 0
        self.read = 0
        self._last = 0

    def add(self, event_type: str, event_id: str, payload: bytes) -> OutboxRow:
        self._last += 1
        row = OutboxRow(self._last, event_type, event_id, payload, offered_to=NEVER_OFFERED, sent=False)
        self.put(row)
        return row

    def put(self, row: OutboxRow) -> None:
        """Have this row in the place of the one that has its number."""
        self.sql(
            "INSERT OR REPLACE INTO outbox (seq, owner, event_type, event_id, payload, created_at, offered_to)"
            " VALUES (?, ?, ?, ?, ?, 0, ?)",
            *(row.seq, ENGINE, row.event_type, row.event_id, row.payload, row.offered_to),
        )

    def call(self, event: ToolCallRequested) -> OutboxRow:
        return self.add(EVENT_TYPE, event.correlation_id, encode_request(event))

    def remove(self, event_id: str) -> None:
        self.sql("DELETE FROM outbox WHERE event_id = ?", event_id)

    @property
    def left(self) -> list[int]:
        """The rows that are not marked."""
        return [row.seq for row in self.sql("SELECT seq FROM outbox WHERE published_at IS NULL ORDER BY seq")]

    def answer(self, correlation_id: str) -> OutboxRow:
        """Commit the answer to a call: its row goes, a fact comes."""
        self.remove(correlation_id)
        return self.add(TOOL_CALL_FINISHED, correlation_id, b"{}")

    async def waiting(self, limit: int, *, after: int = 0) -> Sequence[OutboxRow]:
        self.looks += 1
        rows = await super().waiting(limit, after=after)
        self.read += len(rows)
        return rows

    async def calls(self, correlation_ids: Sequence[str]) -> Sequence[OutboxRow]:
        self.looks += 1
        return await super().calls(correlation_ids)

    async def published(self, rows: Sequence[OutboxRow]) -> None:
        await super().published(rows)
        self.marked += rows

    async def postpone(self, row: OutboxRow, error: str, retry_in_ms: int) -> None:
        self.postponed.append((row.seq, error, retry_in_ms))
        await super().postpone(row, error, retry_in_ms)


# --- A running engine ---


def publish(redis_url: str, *tools: ToolEntry, instructions: str | None = None) -> None:
    """A worker offers these tools and runs none. `instructions` are those of each server."""
    keys, redis = Keys(), SyncRedis.from_url(redis_url)
    with redis:
        now: Any = redis.time()
        beat = ServerHeartbeat(state=ServerState.READY, at=(now[0] + 60) * 1000)
        for server, offered in groupby(tools, key=lambda tool: tool.server):
            catalog = ServerCatalog(server=server, tools=tuple(offered), instructions=instructions)
            fields: Any = {"catalog": msgspec.json.encode(catalog), "worker:w": msgspec.json.encode(beat)}
            redis.sadd(keys.catalog, server)
            redis.hset(keys.catalog_of(server), mapping=fields)
            redis.expire(keys.catalog_of(server), 600)
        redis.publish(keys.control, b'{"kind":"catalog"}')


class Model:
    """A model that says what the test wants, over the real wire protocol. `held` keeps it from its last words."""

    def __init__(self) -> None:
        self.replies: list[list[dict[str, Any]]] = []
        self.asked: list[dict[str, Any]] = []
        self.details: dict[str, Any] = {}  # of the usage of its replies
        self.held = asyncio.Event()
        self.held.set()
        self.port = 0
        self.open = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def will_say(self, text: str) -> None:
        """Its next reply is this text, in two pieces."""
        middle = len(text) // 2
        self.replies.append([{"content": text[:middle]}, {"content": text[middle:]}])

    def will_call(self, *tools: str) -> None:
        """Its next reply asks for these tools, with no arguments."""
        calls = [
            {"index": n, "id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
            for n, name in enumerate(tools)
        ]
        self.replies.append([{"content": "One moment."}, {"tool_calls": calls}])

    def will_call_with(self, tool: str, arguments: dict[str, Any]) -> None:
        """Its next reply asks for this tool, with these arguments."""
        function = {"name": tool, "arguments": json.dumps(arguments)}
        call = {"index": 0, "id": f"call_{len(self.replies)}", "type": "function", "function": function}
        self.replies.append([{"tool_calls": [call]}])

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["Model"]:
        """It answers for as long as the block runs."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self.held.set()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            self.asked.append(msgspec.json.decode(await reader.readexactly(length)))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            first, *rest = self.replies.pop(0) if self.replies else [{"content": "He"}, {"content": "llo"}]
            writer.write(_chunk({"choices": [{"delta": first}]}))
            await writer.drain()
            gone = asyncio.create_task(reader.read(1))
            go_on = asyncio.create_task(self.held.wait())
            await asyncio.wait({gone, go_on}, return_when=asyncio.FIRST_COMPLETED)
            for task in (gone, go_on):
                task.cancel()
            for delta in rest:
                writer.write(_chunk({"choices": [{"delta": delta}]}))
            reason = "tool_calls" if any("tool_calls" in delta for delta in rest) else "stop"
            writer.write(_chunk({"choices": [{"delta": {}, "finish_reason": reason}]}))
            usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10} | self.details
            writer.write(_chunk({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the engine went away, as it may
        finally:
            self.open -= 1
            writer.close()


def _chunk(data: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class Engine:
    """A whole engine on a real socket, in this process."""

    def __init__(self, app: FastAPI, server: Server, port: int) -> None:
        self.app = app
        self.server = server
        self.url = f"http://127.0.0.1:{port}"
        # Shorter than the engine keeps an idle connection (5 s): a request that meets the end of its connection fails.
        limits = httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=2)
        self.client = httpx2.AsyncClient(base_url=self.url, timeout=30, limits=limits, trust_env=False, verify=False)

    async def events(self, method: str, path: str, **options: Any) -> list["Event"]:
        """All events of a stream, to its end."""
        async with self.stream(method, path, **options) as stream:
            return [event async for event in stream]

    @asynccontextmanager
    async def stream(self, method: str, path: str, **options: Any) -> AsyncGenerator["Stream"]:
        async with self.client.stream(method, path, **options) as response:
            if response.status_code != 200:
                await response.aread()
            assert response.status_code == 200, response.text
            yield Stream(response)

    async def offers(self, number: int = 1) -> bool:
        """Whether it offers so many tools at least."""
        servers = (await self.client.get("/v1/tools")).json()["servers"]
        return sum(len(server["tools"]) for server in servers) >= number

    async def begin(self, message: str = "Hi", session_id: str = "", **fields: Any) -> dict[str, str]:
        """Begin a turn without a stream, in a new session if none is given: both ids, and where its events are."""
        session_id = session_id or (await self.client.post("/v1/sessions")).json()["sessionId"]
        answer = await self.client.post(f"/v1/sessions/{session_id}/turns", json={"message": message, **fields})
        assert answer.status_code == 202, answer.text
        return answer.json()

    async def status(self, method: str, path: str, **options: Any) -> int:
        return (await self.client.request(method, path, **options)).status_code

    async def metric(self, line: str) -> bool:
        return line in (await self.client.get("/metrics")).text.splitlines()

    async def chat(self, message: str = "Hi", **fields: Any) -> list["Event"]:
        return await self.events("POST", "/v1/chat", json={"message": message, **fields})


@dataclass(frozen=True, slots=True)
class Event:
    id: str
    name: str
    data: dict[str, Any]


class Stream:
    """The events of a response, one by one."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.retry: int | None = None
        self._events = self._read()

    def __aiter__(self) -> AsyncGenerator[Event]:
        return self._events

    async def until(self, name: str) -> Event:
        """Read on to the next event of this name."""
        async for event in self._events:
            if event.name == name:
                return event
        raise AssertionError(f"the stream ended without {name}")

    async def _read(self) -> AsyncGenerator[Event]:
        fields: dict[str, str] = {}
        async for line in self.response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "retry":
                self.retry = int(value)
            elif name in ("id", "event", "data"):
                fields[name] = value
            elif not line and "data" in fields:
                yield Event(fields["id"], fields["event"], msgspec.json.decode(fields["data"]))
                fields = {}


def settings(folder: Path, redis_url: str, model_url: str, **changes: Any) -> Settings:
    """Settings of an engine for one test; nothing comes from this machine's environment."""
    values: dict[str, Any] = {
        "outbox_path": folder / "engine.sqlite3",
        "redis_url": redis_url,
        "openai_api_key": "a key",
        "openai_base_url": model_url,
        "shutdown_grace_seconds": 0.1,
        "tools_wait_seconds": 0,
    }
    return settings_of(Settings, values | changes)


def in_store(configured: Settings, **changes: Any) -> Settings:
    """The same settings, but for some of the store."""
    return configured.model_copy(update={"store": configured.store.model_copy(update=changes)})


@asynccontextmanager
async def running_engine(
    configured: Settings, *, times: EngineTimes = EngineTimes(), port: int = 0, limits: ConnectionLimits | None = None
) -> AsyncGenerator[Engine]:
    """An engine that serves for as long as the block; port 0 is any."""
    closing = asyncio.Event()
    app = build_app(configured, closing, times)
    [listener] = bind(configured.http.model_copy(update={"port": port}))
    listeners = [listener, *bind_operations(configured.http)]
    server = server_of(
        app,
        closing,
        grace_seconds=configured.http.shutdown_grace_seconds,
        limits=limits,
        forwarded_allow_ips=configured.http.forwarded_allow_ips,
        cors_origins=configured.http.cors_origins,
        times=times.streams,
    )
    serving = asyncio.create_task(server.serve(sockets=listeners))
    engine = Engine(app, server, listener.getsockname()[1])
    try:
        await wait_until(lambda: server.started or serving.done(), what="the engine's start")
        if serving.done():
            serving.result()
        yield engine
    finally:
        await engine.client.aclose()
        server.should_exit = True
        await serving
        for each in listeners:
            each.close()


def with_times(times: EngineTimes) -> pytest.MarkDecorator:
    """The engines of the test, which get those of the fixture `times`, have these."""
    return pytest.mark.parametrize("times", [times], ids=["times"])


SHORT_LEASES = with_times(EngineTimes(ownership=OwnershipTimes(lease=1.0, renew=0.25, look=0.1)))


Start = Callable[..., AbstractAsyncContextManager[Engine]]
"""Starts an engine of a test: with the settings for tests, but for those that are given."""
