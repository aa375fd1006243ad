"""What the guarantees of a tool call cost by themselves: its two commits and its scripts, with nothing around them.

python -m benchmarks.guarantees REDIS_URL [URL | COMMAND ...]    the answering process

This process commits a call in the engine's store, sends ENQUEUE, reads the mailbox and commits the result. The
answering process reads the group and sends START and COMPLETE; with the URL of an MCP server, or the COMMAND of one
over stdio, it calls that server's tool between the two, in a session like a worker's, in which the MCP SDK validates.
There is no relay, no lease, no timeout, no retry, no metric and no log. So this is a lower bound for a call with these
commits and these scripts, and with such a session.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.floor import BATCH, BLOCK_SECONDS, entries
from callstream_runtime.connections import blocking_client, command_client
from dialog_engine.model import AssistantMessage, ToolCall, Turn
from dialog_engine.storage.calls import SqlCalls
from dialog_engine.storage.database import Database
from dialog_engine.storage.sqlite_file import open_sqlite
from dialog_engine.storage.turns import SqlTurns
from plugins_contract.encryption import CLEAR
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import Delivery, EngineLedger, WorkerLedger, decode_reply
from plugins_contract.ledger.replies import Run
from plugins_contract.messages import ExecutionClass, ToolCallRequested, decode_request, new_id
from plugins_contract.outcomes import CallFinished, CallState, TextBlock, ToolOutcome
from plugins_mcp.mcp.calls import Answered, SendState
from plugins_mcp.mcp.content import to_outcome
from plugins_mcp.mcp.session import Session
from plugins_mcp.mcp.spec import ServerOptions, ServerSpec
from plugins_mcp.mcp.stdio import ChildDiagnostics
from plugins_mcp.mcp.transport_options import Http, Stdio, Transport
from plugins_mcp.mcp.watched import Updates, Watched
from tests.support.beginnings import begin
from tests.support.engine_stores import store_of
from tests.support.processes import ROOT, Process

CONSUMER = "bare-worker"
TIMEOUT_MS = 30_000
BACKLOG_LIMIT = 10_000
LATE = ToolOutcome(CallState.EXPIRED)


def keys_for(server: Sequence[str]) -> Keys:
    """Keys of their own for the answering process of each transport."""
    return Keys(f"{type(_transport(server)).__name__}:")


def _transport(server: Sequence[str]) -> Transport | None:
    match server:
        case []:
            return None
        case [url] if url.startswith("http"):
            return Http(url)
        case _:
            return Stdio(server[0], tuple(server[1:]), cwd=str(ROOT))


class BareEngine:
    """The requesting side."""

    def __init__(
        self,
        redis: Any,
        mail: Any,
        keys: Keys,
        database: Database,
        engine_id: str,
        waiting: dict[str, asyncio.Future[ToolOutcome]],
    ) -> None:
        store = store_of(database, engine_id)
        self._database = database
        self._turns = SqlTurns(store)
        self._calls = SqlCalls(store)
        self._ledger = EngineLedger(redis, keys, cipher=CLEAR)
        self._keys = keys
        self._mail = mail
        self._mailbox = keys.mailbox(engine_id)
        self._waiting = waiting
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
            response_channel=self._keys.response(call.correlation_id),
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
                reply = decode_reply(fields[b"reply"], cipher=CLEAR)
                if isinstance(reply, CallFinished):
                    self._waiting.pop(fields[b"id"].decode()).set_result(reply.outcome)


async def answer(redis_url: str, server: Sequence[str]) -> None:
    """Start and complete every call, until cancelled."""
    keys = keys_for(server)
    redis, blocking = command_client(redis_url), blocking_client(redis_url, block_seconds=BLOCK_SECONDS)
    ledger = WorkerLedger(redis, keys, cipher=CLEAR)
    await redis.xgroup_create(keys.requests, GROUP, id="0", mkstream=True)
    async with AsyncExitStack() as stack:
        session, slots = None, asyncio.Semaphore(ServerOptions().concurrency)
        if (transport := _transport(server)) is not None:
            spec = ServerSpec("bare", transport)
            session = Session(spec, spec.options.protocol, ChildDiagnostics(), lambda: None, Watched("bare", Updates()))
            await stack.enter_async_context(session.opened())
            await session.list_all()
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        print("answering", flush=True)
        while True:
            got: Any = await blocking.xreadgroup(
                GROUP, CONSUMER, {keys.requests: ">"}, count=BATCH, block=int(BLOCK_SECONDS * 1000)
            )
            for entry, fields in entries(got):
                delivery = Delivery(decode_request(fields[b"event"]), entry.decode(), CONSUMER, entry.decode())
                tasks.create_task(_echo(ledger, delivery, session, slots))


async def _echo(ledger: WorkerLedger, delivery: Delivery, session: Session | None, slots: asyncio.Semaphore) -> None:
    started = await ledger.start(delivery, max_starts=1, expired=LATE)
    assert isinstance(started, Run), started
    arguments = delivery.request.arguments
    outcome = ToolOutcome(CallState.SUCCEEDED, (TextBlock(str(arguments["text"])),))
    if session is not None:
        async with slots:
            answered = await session.call("echo", arguments, SendState(), lambda _: None, None)
        assert isinstance(answered, Answered), answered
        outcome = to_outcome(answered.result)
    await ledger.complete(delivery, started.fence, outcome)


@asynccontextmanager
async def bare_engine(
    redis_url: str, database_file: Path, turns: int, server: Sequence[str] = ()
) -> AsyncGenerator[BareEngine]:
    """Run both sides for the duration of the block."""
    process = Process([sys.executable, "-m", "benchmarks.guarantees", redis_url, *server], cwd=ROOT)
    try:
        process.wait_ready(lambda: "answering" in process.output())
        redis, mail = command_client(redis_url), blocking_client(redis_url, block_seconds=BLOCK_SECONDS)
        waiting: dict[str, asyncio.Future[ToolOutcome]] = {}
        async with redis, mail, open_sqlite(database_file, waiting.__len__) as database:
            engine = BareEngine(redis, mail, keys_for(server), database, await database.engine_id(), waiting)
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
        runner.run(answer(sys.argv[1], sys.argv[2:]))
