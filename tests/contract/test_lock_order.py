"""Transactions that meet lock their rows in one order, so that none has to be done again."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dialog_engine.chat.waiting_messages import Candidate
from dialog_engine.model import Done, DoneReason, Turn, Usage
from dialog_engine.storage.database import Transaction
from dialog_engine.tool_calls.values import Asked
from plugins_contract.messages import new_id
from tests.contract.test_parked_turns import INSTEAD, REFUSED, asking
from tests.support.beginnings import begin
from tests.support.engine_stores import OUTCOME, EngineStore, tool_call
from tests.support.fakes.worker import failed
from tests.support.locks import blocked

Act = Callable[[EngineStore, Turn, Asked], Awaitable[object]]
SESSION = "UPDATE sessions SET updated_at = updated_at"
USAGE = "UPDATE usage SET turns = turns"


async def ends(store: EngineStore, turn: Turn, _: Asked) -> object:
    first = await store.waiting.first(turn.session_id)
    next_one = first and Candidate(first.turn, first.version, None)
    return await store.turns.finish(turn, None, Done(turn.turn_id, DoneReason.STOP, Usage(), None), None, next_one)


async def decides(store: EngineStore, turn: Turn, asked: Asked) -> object:
    return await store.approvals.decide(turn.turn_id, asked, REFUSED, None, failed("no"))


async def closes(store: EngineStore, turn: Turn, asked: Asked) -> object:
    return await store.approvals.close(turn, lambda _: failed("no"))


async def declines(store: EngineStore, turn: Turn, asked: Asked) -> object:
    return await store.parked.decline(Turn(new_id(), turn.session_id, "ada"), "Rather this", REFUSED, INSTEAD)


async def branches(store: EngineStore, turn: Turn, _: Asked) -> object:
    beside = Turn(new_id(), turn.session_id, "ada", parent="")
    return await store.turns.begin(beside, "Rather that", queue=True)


async def erases(store: EngineStore, turn: Turn, asked: Asked) -> object:
    return await store.erasures.erase("ada")


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("end_first", [True, False])
@pytest.mark.parametrize(
    ("held", "act"),
    [(SESSION, decides), (SESSION, closes), (SESSION, declines), (SESSION, branches), (USAGE, erases)],
)
async def test_the_end_of_a_turn_and_what_people_do_with_it_do_not_deadlock(
    storage: EngineStore, monkeypatch: pytest.MonkeyPatch, held: str, act: Act, end_first: bool
) -> None:
    """Both wait, for a third transaction or for each other, when that lets the rows go which it has `held`."""
    earlier, [asked] = await asking(storage)
    await ends(storage, earlier, asked)
    turn, [asked] = await asking(storage)
    await storage.change("UPDATE turns SET parent_turn_id = NULL")  # as an engine of the last release begins them
    await storage.turns.begin(Turn(new_id(), turn.session_id, "ada"), "Next", queue=True)
    write, attempts = storage.database.write, list[object]()

    async def counted(unit: Callable[[Transaction], Any], *rest: Any) -> Any:
        def attempt(tx: Transaction) -> Any:
            attempts.append(unit)
            return unit(tx)

        return await write(attempt, *rest)

    tasks: list[asyncio.Future[object]] = []
    async with locked(storage, held):
        monkeypatch.setattr(storage.database, "write", counted)
        for number, work in enumerate([ends, act] if end_first else [act, ends], 1):
            tasks.append(asyncio.ensure_future(work(storage, turn, asked)))
            await blocked(storage.database, number)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(attempts) == 2, "one of them was the victim of a deadlock, and was done again"


@asynccontextmanager
async def locked(storage: EngineStore, update: str) -> AsyncGenerator[None]:
    """Another transaction has the rows of this update for as long as the block."""
    has_them, go_on = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        tx.change(update)
        has_them.set()
        go_on.wait(30)

    holder = asyncio.create_task(storage.database.write(hold))
    await asyncio.to_thread(has_them.wait, 30)
    try:
        yield
    finally:
        go_on.set()
        await holder


async def used(store: EngineStore) -> Turn:
    """A turn that has run a tool."""
    turn = await begin(store.turns, "ada", None, "a question")
    await store.add_round(turn, call := tool_call())
    await store.calls.add_result(turn, call, msgspec.structs.replace(OUTCOME, attempts=1))
    return turn


async def is_counted(store: EngineStore, turn: Turn) -> object:
    spent = {"a model": Usage(3)}
    done = Done(turn.turn_id, DoneReason.STOP, Usage(3), None, "a model", by_model=spent)
    return await store.turns.finish(turn, None, done, None)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("tool_first", [True, False])
@pytest.mark.parametrize("erased", [True, False])
async def test_what_was_used_is_locked_in_one_order_by_ends_of_turns_and_erasures(
    storage: EngineStore, erased: bool, tool_first: bool
) -> None:
    """In whatever order the table got the rows: whoever waits for the first one, that of the tool, has no other."""
    if not tool_first:
        await is_counted(storage, await begin(storage.turns, "ada", None, "a question without a tool"))
    await is_counted(storage, await used(storage))
    turn = await used(storage)
    async with locked(storage, f"{USAGE} WHERE model = ''"):
        work = storage.erasures.erase("ada") if erased else is_counted(storage, turn)
        waits = asyncio.ensure_future(work)
        await blocked(storage.database, 1)
        assert await storage.database.read("SELECT 1 FROM usage WHERE model <> '' FOR UPDATE NOWAIT")
    await waits
