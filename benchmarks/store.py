"""The processor time of a turn's commits, on SQLite or PostgreSQL, one turn after the other or several at once.

`python -m benchmarks.store [--turns 2000] [--at-once 1] [--database-url postgresql://…]` prints for each kind of unit
of work the processor time of this process per unit, the threads of the database included, and the number of commits.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from dialog_engine.chat.requests import StartingRequest
from dialog_engine.model import AssistantMessage, Done, DoneReason, ToolCall, Turn, Usage
from dialog_engine.storage.calls import SqlCalls
from dialog_engine.storage.database import Database
from dialog_engine.storage.postgres import open_postgres
from dialog_engine.storage.sqlite_file import open_sqlite
from dialog_engine.storage.turns import SqlTurns
from plugins_contract.messages import ExecutionClass, ToolCallRequested, new_id
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from tests.support.engine_stores import store_of

OUTCOME = ToolOutcome(CallState.SUCCEEDED, (TextBlock("42"),))


async def main() -> None:
    """Run the benchmark and print a JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--database-url")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        async with _store(options.database_url, Path(folder)) as database:
            print(json.dumps(await measured(database, options.turns, options.at_once)))


def _store(url: str | None, folder: Path) -> AbstractAsyncContextManager[Database]:
    return open_postgres(url, 8) if url else open_sqlite(folder / "engine.sqlite3")


async def measured(database: Database, count: int, at_once: int) -> dict[str, float]:
    """Microseconds of processor time per unit, and commits per unit, by kind of unit."""
    engine_id = await database.engine_id()
    units = store_of(database, engine_id)
    store, calls = SqlTurns(units), SqlCalls(units)
    turns = [Turn(new_id(), new_id(), "somebody") for _ in range(count)]
    made = [ToolCall("call_1", new_id(), "demo__add", '{"a": 1}') for _ in turns]
    said = AssistantMessage("Forty-two, as far as I can tell.")
    figures: dict[str, float] = {}

    async def measure(name: str, work: list[Awaitable[object]]) -> None:
        began, commits = time.process_time(), database.commits
        for at in range(0, len(work), at_once):
            await asyncio.gather(*work[at : at + at_once])
        figures[f"{name}_us"] = round((time.process_time() - began) / len(work) * 1e6, 1)
        figures[f"{name}_commits"] = round((database.commits - commits) / len(work), 3)

    sent = [StartingRequest(content=turn.turn_id) for turn in turns]
    begun = [
        store.begin(turn, "What is 6 times 7?", new_session=True, request=request)
        for turn, request in zip(turns, sent, strict=True)
    ]
    await measure("begin", [*begun])
    rounds = [
        calls.add_round(turn, AssistantMessage("", (call,)), [_request(turn, call)], {})
        for turn, call in zip(turns, made, strict=True)
    ]
    await measure("round", [*rounds])
    results = [calls.add_result(turn, call, OUTCOME) for turn, call in zip(turns, made, strict=True)]
    await measure("result", [*results])
    ends = [store.finish(turn, said, Done(turn.turn_id, DoneReason.STOP, Usage(7, 3), 5), None) for turn in turns]
    await measure("finish", [*ends])
    return figures


def _request(turn: Turn, call: ToolCall) -> ToolCallRequested:
    return ToolCallRequested(
        correlation_id=call.correlation_id,
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        turn=1,
        tool_call_id=call.tool_call_id,
        tool_name=call.name,
        server="demo",
        tool="add",
        arguments={"a": 1},
        response_channel="response",
        mailbox="mailbox",
        deadline=1,
        execution_class=ExecutionClass.ONCE,
        subject=turn.subject,
    )


if __name__ == "__main__":
    asyncio.run(main())
