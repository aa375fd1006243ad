"""A turn that ends and what people do with it lock their rows in one order, so that neither has to be done again."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dialog_engine.model import Done, DoneReason, Turn, Usage
from dialog_engine.storage.database import Transaction
from dialog_engine.tool_calls.values import Asked
from plugins_contract.messages import new_id
from tests.contract.test_parked_turns import REFUSED, asking
from tests.support.engine_stores import EngineStore
from tests.support.fakes.worker import failed
from tests.support.locks import blocked

Act = Callable[[EngineStore, Turn, Asked], Awaitable[object]]


async def decides(store: EngineStore, turn: Turn, asked: Asked) -> object:
    return await store.approvals.decide(turn.turn_id, asked, REFUSED, None, failed("no"))


async def closes(store: EngineStore, turn: Turn, asked: Asked) -> object:
    return await store.approvals.close(turn, lambda _: failed("no"))


async def declines(store: EngineStore, turn: Turn, asked: Asked) -> object:
    return await store.parked.decline(Turn(new_id(), turn.session_id, "ada"), "Rather this", REFUSED)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize("act", [decides, closes, declines])
@pytest.mark.parametrize("first", ["end", "act"])
async def test_the_end_of_a_turn_and_a_decision_do_not_deadlock(
    storage: EngineStore, monkeypatch: pytest.MonkeyPatch, first: str, act: Act
) -> None:
    """Each waits for the session, or for the other one's turn, when a third transaction lets the session go."""
    turn, [asked] = await asking(storage)
    locked, go_on = threading.Event(), threading.Event()

    def holding(tx: Transaction) -> None:
        tx.change("UPDATE sessions SET updated_at = updated_at WHERE session_id = $1", turn.session_id)
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
    done = Done(turn.turn_id, DoneReason.STOP, Usage(), None)

    async def ends(store: EngineStore, turn: Turn, _: Asked) -> object:
        return await store.turns.finish(turn, None, done, None)

    tasks: list[asyncio.Future[object]] = []
    for number, work in enumerate([ends, act] if first == "end" else [act, ends], 1):
        tasks.append(asyncio.ensure_future(work(storage, turn, asked)))
        await blocked(storage.database, number)
    go_on.set()
    await asyncio.gather(holder, *tasks, return_exceptions=True)
    assert len(attempts) == 2, "one of them was the victim of a deadlock, and was done again"
