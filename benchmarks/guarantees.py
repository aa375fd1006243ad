"""What the guarantees of a tool call cost by themselves: its two commits and its scripts, with nothing around them.

python -m benchmarks.guarantees REDIS_URL    the answering process

This process commits a call with the store's own unit of work, sends ENQUEUE, reads the mailbox and commits the result.
The answering process reads the group and sends START and COMPLETE. There is no relay, no lease, no timeout, no tool, no
metric and no log, and commits are made on the event loop, those of one turn of the loop together. So this is a lower
bound for a call in Python with these commits and these scripts.
"""

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from benchmarks.floor import BATCH, BLOCK_SECONDS, entries
from dialog_engine.model import AssistantMessage, ToolCall, Turn
from dialog_engine.storage.audit import AuditTrail
from dialog_engine.storage.calls import SqlCalls
from dialog_engine.storage.database import Database, Row, Transaction, Unit
from dialog_engine.storage.sqlite import open_sqlite
from dialog_engine.storage.turns import SqlTurns
from plugins_contract.connections import blocking_client, command_client
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import Delivery, EngineLedger, WorkerLedger, decode_reply
from plugins_contract.ledger.replies import Run
from plugins_contract.messages import ExecutionClass, ToolCallRequested, decode_request, new_id
from plugins_contract.outcomes import CallFinished, CallState, TextBlock, ToolOutcome
from tests.support.beginnings import begin
from tests.support.processes import ROOT, Process

T = TypeVar("T")
KEYS = Keys("guarantees:")
ENGINE_ID, CONSUMER = "bare-engine", "bare-worker"
TIMEOUT_MS = 30_000
BACKLOG_LIMIT = 10_000
LATE = ToolOutcome(CallState.EXPIRED)


class _InlineDatabase(Database, Transaction):
    """Commits on the event loop: without a thread, all units of one turn of the loop in one transaction."""

    skip_locked = ""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._units: list[tuple[Unit[Any], asyncio.Future[Any]]] = []
        self.commits = 0

    def execute(self, sql: str, *parameters: Any) -> list[Row]:
        return self._connection.execute(sql, _named(parameters)).fetchall()

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, map(_named, rows))

    async def write(self, unit: Unit[T]) -> T:
        loop = asyncio.get_running_loop()
        if not self._units:
            loop.call_soon(self._commit)
        done = loop.create_future()
        self._units.append((unit, done))
        return await done

    def _commit(self) -> None:
        units, self._units = self._units, []
        self._connection.execute("BEGIN IMMEDIATE")
        results = [unit(self) for unit, _ in units]
        self._connection.execute("COMMIT")
        self.commits += 1
        for result, (_, done) in zip(results, units, strict=True):
            done.set_result(result)

    async def read(self, sql: str, *parameters: Any) -> list[Row]:
        return self.execute(sql, *parameters)

    async def check(self) -> None:
        pass

    async def engine_id(self) -> str:
        return ENGINE_ID


def _named(parameters: Sequence[Any]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(parameters, 1)}


async def _connected(path: Path) -> sqlite3.Connection:
    """A connection to the engine's tables, with the engine's settings."""
    async with open_sqlite(path):
        pass
    connection = sqlite3.connect(path, isolation_level=None)
    connection.create_function("now_ms", 0, lambda: time.time_ns() // 1_000_000)
    for setting in ("synchronous=FULL", "secure_delete=ON", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {setting}")
    return connection


class BareEngine:
    """The requesting side."""

    def __init__(self, redis: Any, mail: Any, database: Database) -> None:
        audit = AuditTrail(ENGINE_ID, b"key")
        self._database = database
        self._turns = SqlTurns(database, ENGINE_ID, lambda _: None, audit)
        self._calls = SqlCalls(database, ENGINE_ID, lambda _: None, audit)
        self._ledger = EngineLedger(redis, KEYS)
        self._mail = mail
        self._mailbox = KEYS.mailbox(ENGINE_ID)
        self._waiting: dict[str, asyncio.Future[ToolOutcome]] = {}
        self._idle: list[Turn] = []

    @property
    def commits(self) -> int:
        """How many transactions were committed."""
        return self._database.commits

    async def prepare(self, turns: int) -> None:
        """Begin one turn per simultaneous call."""
        self._idle = [await begin(self._turns, "benchmark", None, "echo") for _ in range(turns)]

    async def call(self, text: str) -> str:
        """One call, from its commit to the commit of its result. Returns the text of the result."""
        turn = self._idle.pop()
        call = ToolCall("call_1", new_id(), "bare__echo", json.dumps({"text": text}))
        await self._calls.add_round(turn, AssistantMessage("", (call,)), [request := self._request(turn, call)], {})
        reply = self._waiting[call.correlation_id] = asyncio.get_running_loop().create_future()
        await self._ledger.enqueue(request, backlog_limit=BACKLOG_LIMIT)
        outcome = await reply
        await self._calls.add_result(turn, call, outcome)
        self._idle.append(turn)
        return "".join(block.text for block in outcome.content if isinstance(block, TextBlock))

    def _request(self, turn: Turn, call: ToolCall) -> ToolCallRequested:
        return ToolCallRequested(
            correlation_id=call.correlation_id,
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            turn=1,
            tool_call_id=call.tool_call_id,
            tool_name=call.name,
            server="bare",
            tool="echo",
            arguments=json.loads(call.arguments),
            response_channel=KEYS.response(call.correlation_id),
            mailbox=self._mailbox,
            deadline=time.time_ns() // 1_000_000 + TIMEOUT_MS,
            execution_class=ExecutionClass.ONCE,
            subject=turn.subject,
        )

    async def read(self) -> None:
        """Pass the replies to their callers, until cancelled."""
        last = b"0-0"
        while True:
            got = await self._mail.xread({self._mailbox: last}, count=BATCH, block=int(BLOCK_SECONDS * 1000))
            for last, fields in entries(got):  # noqa: B007 -- the position of the next read
                reply = decode_reply(fields[b"reply"])
                if isinstance(reply, CallFinished):
                    self._waiting.pop(fields[b"id"].decode()).set_result(reply.outcome)


async def answer(redis_url: str) -> None:
    """Start and complete every call, until cancelled."""
    redis, blocking = command_client(redis_url), blocking_client(redis_url, block_seconds=BLOCK_SECONDS)
    ledger = WorkerLedger(redis, KEYS)
    await redis.xgroup_create(KEYS.requests, GROUP, id="0", mkstream=True)
    print("answering", flush=True)
    async with asyncio.TaskGroup() as tasks:
        while True:
            got: Any = await blocking.xreadgroup(
                GROUP, CONSUMER, {KEYS.requests: ">"}, count=BATCH, block=int(BLOCK_SECONDS * 1000)
            )
            for entry, fields in entries(got):
                delivery = Delivery(decode_request(fields[b"event"]), entry.decode(), CONSUMER, entry.decode())
                tasks.create_task(_echo(ledger, delivery))


async def _echo(ledger: WorkerLedger, delivery: Delivery) -> None:
    started = await ledger.start(delivery, max_starts=1, expired=LATE)
    assert isinstance(started, Run), started
    text = str(delivery.request.arguments["text"])
    await ledger.complete(delivery, started.fence, ToolOutcome(CallState.SUCCEEDED, (TextBlock(text),)))


@asynccontextmanager
async def bare_engine(redis_url: str, database_file: Path, turns: int) -> AsyncGenerator[BareEngine]:
    """Run both sides for the duration of the block."""
    process = Process([sys.executable, "-m", "benchmarks.guarantees", redis_url], cwd=ROOT)
    try:
        process.wait_ready(lambda: "answering" in process.output())
        redis, mail = command_client(redis_url), blocking_client(redis_url, block_seconds=BLOCK_SECONDS)
        with closing(await _connected(database_file)) as connection:
            async with redis, mail:
                engine = BareEngine(redis, mail, _InlineDatabase(connection))
                await engine.prepare(turns)
                reading = asyncio.create_task(engine.read())
                try:
                    yield engine
                finally:
                    reading.cancel()
                    await asyncio.wait([reading])
    finally:
        process.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(answer(sys.argv[1]))
