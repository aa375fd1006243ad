"""Stop: the user ends a turn. The text so far is kept, and each call gets the outcome that it really has."""

import asyncio

from dialog_engine.model import AssistantMessage, DoneReason, MessageFinished, TextDelta, ToolStatus
from dialog_engine.tool_calls.normalise import NO_REPLY
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, done_of, is_step, is_text, steps_of
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, FakeWorker, gives, succeeded, tool


@promise("stop closes the stream at the provider and keeps the partial text")
async def test_stopping_keeps_the_partial_text_and_closes_the_stream_at_the_provider() -> None:
    model = ScriptedModel([TextDelta("It all "), TextDelta("began"), asyncio.Event()])
    async with FakeEngine(model) as engine:
        turn = await engine.begun("Tell me everything.", is_text("began"))

        assert await engine.turns.cancel(turn.turn_id)

        events = await engine.seen(turn)
    assert model.open == 0
    assert events[-2] == MessageFinished(2, AssistantMessage("It all began", interrupted=True))
    assert done_of(events).reason is DoneReason.CANCELLED


@promise("a call's last step says what really happened")
async def test_stopping_cancels_running_calls_and_keeps_finished_results() -> None:
    model = ScriptedModel(asks(("job__quick", ""), ("job__long", "")))
    worker = FakeWorker({"job__long": gives(succeeded("never"), asyncio.Event())})
    async with FakeEngine(model, tools=FakeCatalog(tool("job__quick"), tool("job__long")), worker=worker) as engine:
        turn = await engine.begun("Both!", is_step(ToolStatus.SUCCEEDED, "job__quick"))
        await engine.until(turn, is_step(ToolStatus.RUNNING, "job__long"))

        await engine.turns.cancel(turn.turn_id)

        events = await engine.seen(turn)
    assert steps_of(events, "job__quick")[-1] is ToolStatus.SUCCEEDED
    assert steps_of(events, "job__long")[-1] is ToolStatus.CANCELLED


@promise("a call's last step says what really happened")
async def test_a_running_call_that_no_worker_confirms_ends_as_unknown() -> None:
    worker = FakeWorker({"job__long": gives(succeeded("never"), asyncio.Event())})
    worker.deaf = True
    async with FakeEngine(
        ScriptedModel(asks(("job__long", ""))), tools=FakeCatalog(tool("job__long")), worker=worker
    ) as engine:
        turn = await engine.begun("Go!", is_step(ToolStatus.RUNNING))
        await engine.turns.cancel(turn.turn_id)
        events = await engine.seen(turn)

    assert steps_of(events)[-1] is ToolStatus.UNKNOWN


@promise("the history is valid after a stop")
async def test_after_a_stop_the_history_has_a_result_for_every_call() -> None:
    model = ScriptedModel(asks(("job__long", "")), says("Fine."))
    worker = FakeWorker({"job__long": gives(succeeded("never"), asyncio.Event())})
    async with FakeEngine(model, tools=FakeCatalog(tool("job__long")), worker=worker) as engine:
        turn = await engine.begun("Go!", is_step(ToolStatus.RUNNING))
        await engine.turns.cancel(turn.turn_id)

        await engine.turn("Never mind.", turn.session_id, subject="ada")

    _, asked, result, no_reply, _ = model.requests[1].messages
    assert isinstance(asked, AssistantMessage)
    assert result.content.startswith("Error CANCELLED")
    assert no_reply == AssistantMessage(NO_REPLY)


async def test_stopping_a_turn_that_does_not_run_here_returns_false() -> None:
    async with FakeEngine(ScriptedModel()) as engine:
        assert not await engine.turns.cancel("some turn")
