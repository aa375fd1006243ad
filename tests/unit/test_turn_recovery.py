"""RunningTurns: a turn that is resumed after a restart or an adoption."""

import asyncio

from dialog_engine.errors import TurnCrashesError
from dialog_engine.model import (
    DoneReason,
    FinishReason,
    MessageFinished,
    StreamEnd,
    TextDelta,
    ToolCallEvent,
    ToolStatus,
    TurnFailed,
)
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, breathe, done_of, is_step, is_text, steps_of
from tests.support.fakes.models import SPENT, Line, ScriptedModel, asks, says
from tests.support.fakes.stores import MemoryStore
from tests.support.fakes.worker import FakeCatalog, FakeWorker, gives, succeeded, tool
from tests.support.waiting import wait_until

SHELF = FakeCatalog(tool("a__b"), tool("a__c"))


@promise("another engine adopts the turns of an engine that is gone, and the old owner is fenced")
async def test_a_turn_that_another_engine_owns_is_dropped_and_shows_nothing_more() -> None:
    store = MemoryStore()
    hold = store.hold["finish"] = asyncio.Event()
    async with FakeEngine(ScriptedModel(says("x")), store=store) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await wait_until(lambda: "finish" in store.begun)
        engine.turns.drop([turn])
        await breathe()
        hold.set()
        events = await engine.seen(turn)

    assert [type(event).__name__ for event in events] == ["TurnStarted", "TextDelta"]


async def test_a_stop_during_an_adoption_waits_for_the_end_at_the_new_owner() -> None:
    async with FakeEngine(ScriptedModel([TextDelta("a"), asyncio.Event()], [asyncio.Event()])) as engine:
        turn = await engine.begun("?", is_text("a"))
        stopping = asyncio.create_task(engine.turns.cancel(turn.turn_id))
        await asyncio.sleep(0)
        engine.turns.drop([turn])
        [left] = await engine.store.engines.adopt_own(None)
        engine.turns.run(left.turn, stopped=left.stopped)
        assert await stopping
        assert done_of(await engine.seen(turn)).reason is DoneReason.CANCELLED


async def test_a_turn_that_was_stopped_between_two_lives_shows_what_was_committed_before_it_ends() -> None:
    async with FakeEngine(ScriptedModel([TextDelta("a"), asyncio.Event()])) as engine:
        turn = await engine.begun("?", is_text("a"))
        await engine.turns.close(0)
        await engine.store.turns.request_stop(turn.turn_id)
        [left] = await engine.store.engines.adopt_own(None)
        engine.turns.run(left.turn, stopped=left.stopped)
        events = await engine.seen(turn)

    assert [type(event).__name__ for event in events] == ["TurnStarted", "Reset", "Done"]
    assert done_of(events).reason is DoneReason.CANCELLED


async def test_a_turn_with_a_failure_ends_with_it_and_asks_no_model() -> None:
    worker = FakeWorker({"a__b": gives(succeeded("x"), asyncio.Event())})
    model = ScriptedModel(asks(("a__b", "")))
    async with FakeEngine(model, tools=SHELF, worker=worker) as engine:
        turn = await engine.begun("?", is_step(ToolStatus.RUNNING, "a__b"))
        await engine.turns.close(0)
        [left] = await engine.store.engines.adopt_own(None)
        engine.turns.run(left.turn, failure=TurnCrashesError("why"))
        events = await engine.seen(turn)

    assert [type(event).__name__ for event in events] == ["TurnStarted", "Reset", "ToolStep", "TurnFailed", "Done"]
    assert TurnFailed("TURN_CRASHES", "why") in events
    assert (done_of(events).reason, done_of(events).usage) == (DoneReason.ERROR, SPENT)
    assert engine.store.unanswered(turn) == []


@promise("the end of a turn includes the cost of its earlier runs")
async def test_the_usage_of_earlier_lives_is_in_done() -> None:
    finish = asyncio.Event()
    worker = FakeWorker({"a__b": gives(succeeded("x"), finish)})
    model = ScriptedModel(asks(("a__b", "")), says("x"))
    async with FakeEngine(model, tools=SHELF, worker=worker) as engine:
        turn = await engine.begun("?", is_step(ToolStatus.RUNNING, "a__b"))
        await engine.restart()
        finish.set()
        events = await engine.seen(turn)

    assert done_of(events).usage == SPENT + SPENT


@promise("an answer is never empty: the model is asked once more, then the turn ends with an error that says so")
async def test_a_turn_that_is_taken_up_after_an_empty_reply_gets_its_answer_all_the_same() -> None:
    nothing = [StreamEnd(FinishReason.STOP, SPENT)]
    model = ScriptedModel(asks(("a__b", "")), nothing, [asyncio.Event()], nothing, says("Done."))
    async with FakeEngine(model, tools=SHELF) as engine:
        turn = await engine.turns.start("ada", None, "?")
        await wait_until(lambda: len(model.requests) == 3)
        await engine.restart()
        events = await engine.seen(turn)

    assert (done_of(events).reason, done_of(events).usage) == (DoneReason.STOP, SPENT + SPENT + SPENT)
    assert [event.message.content for event in events if isinstance(event, MessageFinished)] == ["Done."]


async def test_a_turn_that_was_adopted_does_not_end_twice() -> None:
    model = ScriptedModel(says("x"))
    store = MemoryStore()
    async with FakeEngine(model, store=store) as engine:
        hold = store.hold["finish"] = asyncio.Event()
        turn = await engine.turns.start("ada", None, "?")
        await wait_until(lambda: "finish" in store.begun)
        store.memory.rows("UPDATE turns SET epoch = 2")
        hold.set()
        events = await engine.seen(turn)

    assert store.status(turn) == "running"
    assert not any(isinstance(event, MessageFinished) for event in events)


async def test_a_finish_reason_of_tool_calls_with_calls_makes_a_round_whatever_it_says() -> None:
    odd: list[Line] = [ToolCallEvent("call_1", "a__b", ""), StreamEnd(FinishReason.STOP, SPENT)]
    async with FakeEngine(ScriptedModel(odd, says("x")), tools=SHELF) as engine:
        events = await engine.turn("?")

    assert steps_of(events)[-1] is ToolStatus.SUCCEEDED
