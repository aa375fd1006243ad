"""Stop: the user ends a turn. What was said is kept, and each call says what really became of it."""

import asyncio

import pytest

from dialog_engine.model import AssistantMessage, DoneReason, MessageFinished, TextDelta, ToolStatus
from dialog_engine.tool_calls.normalise import NO_REPLY
from tests.support.fakes import (
    FakeCatalog,
    FakeEngine,
    FakeWorker,
    ScriptedModel,
    asks,
    done_of,
    gives,
    is_step,
    is_text,
    says,
    steps_of,
    succeeded,
    tool,
)

pytestmark = pytest.mark.anyio


async def test_the_partial_text_is_kept_and_marked_and_the_stream_at_the_provider_is_closed() -> None:
    model = ScriptedModel([TextDelta("It all "), TextDelta("began"), asyncio.Event()])
    async with FakeEngine(model) as engine:
        turn = await engine.turns.start("ada", None, "Tell me everything.")
        await engine.until(turn, is_text("began"))

        assert await engine.turns.cancel(turn.turn_id)

        events = await engine.seen(turn)
    assert model.open == 0
    assert events[-2] == MessageFinished(2, AssistantMessage("It all began", interrupted=True))
    assert done_of(events).reason is DoneReason.CANCELLED


async def test_calls_that_run_are_cancelled_and_those_that_ended_keep_their_result() -> None:
    model = ScriptedModel(asks(("job__quick", ""), ("job__long", "")))
    worker = FakeWorker({"job__long": gives(succeeded("never"), asyncio.Event())})
    async with FakeEngine(model, tools=FakeCatalog(tool("job__quick"), tool("job__long")), worker=worker) as engine:
        turn = await engine.turns.start("ada", None, "Both!")
        await engine.until(turn, is_step(ToolStatus.SUCCEEDED, "job__quick"))
        await engine.until(turn, is_step(ToolStatus.RUNNING, "job__long"))

        await engine.turns.cancel(turn.turn_id)

        events = await engine.seen(turn)
    assert steps_of(events, "job__quick")[-1] is ToolStatus.SUCCEEDED
    assert steps_of(events, "job__long")[-1] is ToolStatus.CANCELLED


async def test_a_call_of_which_nobody_knows_is_said_to_be_unknown() -> None:
    worker = FakeWorker({"job__long": gives(succeeded("never"), asyncio.Event())})
    worker.deaf = True
    async with FakeEngine(
        ScriptedModel(asks(("job__long", ""))), tools=FakeCatalog(tool("job__long")), worker=worker
    ) as engine:
        turn = await engine.turns.start("ada", None, "Go!")
        await engine.until(turn, is_step(ToolStatus.RUNNING))
        await engine.turns.cancel(turn.turn_id)
        events = await engine.seen(turn)

    assert steps_of(events)[-1] is ToolStatus.UNKNOWN


async def test_the_session_goes_on_after_a_stop_with_a_history_that_has_every_result() -> None:
    model = ScriptedModel(asks(("job__long", "")), says("Fine."))
    worker = FakeWorker({"job__long": gives(succeeded("never"), asyncio.Event())})
    async with FakeEngine(model, tools=FakeCatalog(tool("job__long")), worker=worker) as engine:
        turn = await engine.turns.start("ada", None, "Go!")
        await engine.until(turn, is_step(ToolStatus.RUNNING))
        await engine.turns.cancel(turn.turn_id)

        await engine.turn("Never mind.", turn.session_id, subject="ada")

    _, asked, result, no_reply, _ = model.requests[1].messages
    assert isinstance(asked, AssistantMessage)
    assert result.content.startswith("Error CANCELLED")
    assert no_reply == AssistantMessage(NO_REPLY)


async def test_stopping_a_turn_that_does_not_run_here_says_so() -> None:
    async with FakeEngine(ScriptedModel()) as engine:
        assert not await engine.turns.cancel("some turn")
