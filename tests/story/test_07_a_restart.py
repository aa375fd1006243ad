"""A restart: the engine stops in the middle of a turn, and resumes it when it starts again."""

import asyncio

from dialog_engine.model import (
    DoneReason,
    MessageFinished,
    Reset,
    ResetReason,
    RoundComplete,
    TextDelta,
    ToolMessage,
    ToolStatus,
    ToolStep,
    TurnStarted,
)
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, done_of, is_step, is_text, steps_of, text_of
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, FakeWorker, gives, succeeded, tool


@promise("a reset names its cause")
@promise("an LLM call that was cut is made again after a reset")
async def test_an_interrupted_message_is_made_again_and_the_user_gets_a_reset() -> None:
    model = ScriptedModel([TextDelta("Once upon"), asyncio.Event()], says("Once upon a time."))
    async with FakeEngine(model) as engine:
        turn = await engine.begun("A story!", is_text("Once upon"))

        assert await engine.restart() == 1

        events = await engine.seen(turn)
        assert events[:2] == [TurnStarted(turn.turn_id, turn.session_id), Reset(ResetReason.RESTART)]
        assert text_of(events) == "Once upon a time."
        assert [message.content for message in model.requests[1].messages] == ["A story!"]
        assert [life.turn.epoch for life in engine.logs.lives[turn.turn_id]] == [1, 2]


@promise("a turn says how many calls it had, also after a restart")
@promise("what was committed before a crash is sent after it")
@promise("a restarted engine goes on: finished tools are not run again")
async def test_finished_calls_are_not_repeated_and_running_ones_are_awaited() -> None:
    finish = asyncio.Event()
    model = ScriptedModel(asks(("job__quick", ""), ("job__long", "")), says("Both are done."))
    worker = FakeWorker({"job__quick": gives(succeeded("one")), "job__long": gives(succeeded("two"), finish)})
    async with FakeEngine(model, tools=FakeCatalog(tool("job__quick"), tool("job__long")), worker=worker) as engine:
        turn = await engine.begun("Both!", is_step(ToolStatus.SUCCEEDED, "job__quick"))
        await engine.until(turn, is_step(ToolStatus.RUNNING, "job__long"))

        await engine.restart()
        finish.set()
        events = await engine.seen(turn)

    assert len(worker.executed) == 2
    # The reset contains everything that is committed, so that no client depends on events from before the restart.
    [received] = [event.events for event in events if isinstance(event, Reset)]
    assert [type(event) for event in received] == [MessageFinished, ToolStep, ToolStep]
    assert steps_of(received) == [ToolStatus.SUCCEEDED, ToolStatus.PENDING]
    assert RoundComplete(1) in events
    assert steps_of(events, "job__quick") == []
    assert steps_of(events, "job__long")[-1] is ToolStatus.SUCCEEDED
    results = [message.content for message in model.requests[1].messages if isinstance(message, ToolMessage)]
    assert results == ["one", "two"]
    assert (done_of(events).reason, done_of(events).tool_calls) == (DoneReason.STOP, 2)


async def test_rounds_before_the_restart_count() -> None:
    model = ScriptedModel(asks(("job__quick", "")), [asyncio.Event()], says("Enough."))
    async with FakeEngine(model, tools=FakeCatalog(tool("job__quick")), max_rounds=1) as engine:
        turn = await engine.begun("Go!", is_step(ToolStatus.SUCCEEDED))
        await engine.restart()
        events = await engine.seen(turn)

    assert model.requests[-1].answer_only
    assert done_of(events).reason is DoneReason.MAX_ROUNDS
