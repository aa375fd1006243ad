"""Repeated calls: a call that keeps giving the same result is not run any more, also after a restart."""

import asyncio

import pytest

from dialog_engine.model import DoneReason, TextDelta, ToolMessage, ToolStatus, ToolStep
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, done_of, is_text, steps_of, text_of
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, tool

CATALOG = FakeCatalog(tool("job__status"))
AGAIN = asks(("job__status", '{"job": 7}'))


@pytest.mark.parametrize("name", ["job__status", "status"])
async def test_repeated_calls_get_a_note_then_an_error_and_then_the_model_must_answer(name: str) -> None:
    again = asks((name, '{"job": 7}'))
    model = ScriptedModel(again, again, again, again, again, says("Job 7 does not move."))
    async with FakeEngine(model, tools=CATALOG, max_rounds=20) as engine:
        events = await engine.turn("Tell me when job 7 is done.")
        assert len(engine.worker.executed) == 3

    ends = [step for step in steps_of(events) if step in (ToolStatus.SUCCEEDED, ToolStatus.REFUSED)]
    assert ends == [ToolStatus.SUCCEEDED] * 3 + [ToolStatus.REFUSED] * 2
    assert text_of(events) == "Job 7 does not move."
    assert done_of(events).reason is DoneReason.REPEATED_CALLS


@promise("a call that repeats itself with the same result is noticed")
async def test_repetitions_are_counted_across_a_restart() -> None:
    cut = [TextDelta("Once"), asyncio.Event()]
    model = ScriptedModel(AGAIN, AGAIN, AGAIN, cut, AGAIN, says("No."))
    async with FakeEngine(model, tools=CATALOG, max_rounds=20) as engine:
        turn = await engine.begun("Tell me when job 7 is done.", is_text("Once"))
        await engine.restart()
        events = await engine.seen(turn)
        assert len(engine.worker.executed) == 3

    refused = [event for event in events if isinstance(event, ToolStep) and event.status is ToolStatus.REFUSED]
    assert [step.details["error"]["code"] for step in refused] == ["REPEATED"]
    results = [message.content for message in model.requests[3].messages if isinstance(message, ToolMessage)]
    assert results == [message.content for message in model.requests[4].messages if isinstance(message, ToolMessage)]
    assert "nothing new came of it" in results[2]
