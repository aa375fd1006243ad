"""Transactions that meet lock their rows in one order, so that none has to be done again."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dialog_engine.chat.waiting_messages import Candidate
from dialog_engine.model import Done, DoneReason, Turn, Usage
from dialog_engine.storage.database import Transaction
from dialog_engine.tool_calls.values import Asked
from plugins_contract.messages import new_id
from tests.contract.test_parked_turns import INSTEAD, REFUSED, asking
from tests.support.engine_stores import EngineStore
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


async def erases(store: EngineStore, turn: Turn, asked: Asked) -> object:
    return await store.erasures.erase("ada")


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("end_first", [True, False])
@pytest.mark.parametrize(("held", "act"), [(SESSION, decides), (SESSION, closes), (SESSION, declines), (USAGE, erases)])
async def test_the_end_of_a_turn_and_what_people_do_with_it_do_not_deadlock(
    storage: EngineStore, monkeypatch: pytest.MonkeyPatch, held: str, act: Act, end_first: bool
) -> None:
    """Both wait, for a third transaction or for each other, when that lets the rows go which it has `held`."""
    earlier, [asked] = await asking(storage)
    await ends(storage, earlier, asked)
    turn, [asked] = await asking(storage)
    await storage.turns.begin(Turn(new_id(), turn.session_id, "ada"), "Next", queue=True)
    locked, go_on = threading.Event(), threading.Event()

    def holding(tx: Transaction) -> None:
        tx.change(held)
        locked.set()
        go_on.wait(30)

    holder = asyncio.create_task(storage.database.write(holding))
    await asyncio.to_thread(locked.wait, 30)
    write, attempts = storage.database.write, list[object]()

    async def counted(unit: Callable[[Transaction], Any], *rest: Any) -> Any:
        def attempt(tx: Transaction) -> Any:
            attempts.append(unit)
            return unit(tx)

        return await write(attempt, *rest)

    monkeypatch.setattr(storage.database, "write", counted)
    tasks: list[asyncio.Future[object]] = []
    for number, work in enumerate([ends, act] if end_first else [act, ends], 1):
        tasks.append(asyncio.ensure_future(work(storage, turn, asked)))
        await blocked(storage.database, number)
    go_on.set()
    await asyncio.gather(holder, *tasks, return_exceptions=True)
    assert len(attempts) == 2, "one of them was the victim of a deadlock, and was done again"
