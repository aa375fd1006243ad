"""Rounds: the model may call tools repeatedly, up to a limit. Then it has to answer with what it has."""

from dialog_engine.model import DoneReason, FinishReason, RoundComplete, StreamEnd, ToolCallEvent, Usage
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, done_of, text_of
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, tool

CATALOG = FakeCatalog(tool("web__search"))
AGAIN = asks(("web__search", ""))


async def test_the_model_calls_tools_until_it_has_an_answer() -> None:
    async with FakeEngine(ScriptedModel(AGAIN, AGAIN, says("Found it.")), tools=CATALOG) as engine:
        events = await engine.turn("Search!")

    assert [event for event in events if isinstance(event, RoundComplete)] == [RoundComplete(1), RoundComplete(2)]
    assert done_of(events).reason is DoneReason.STOP
    assert done_of(events).usage == Usage(30, 15)


@promise("after the last round the model answers without tools")
async def test_after_the_last_round_the_model_answers_without_calls() -> None:
    model = ScriptedModel(AGAIN, AGAIN, says("As far as I know: no."))
    async with FakeEngine(model, tools=CATALOG, max_rounds=2) as engine:
        events = await engine.turn("Search!")

    assert [request.answer_only for request in model.requests] == [False, False, True]
    assert text_of(events) == "As far as I know: no."
    assert done_of(events).reason is DoneReason.MAX_ROUNDS


async def test_calls_in_the_last_answer_are_not_run_and_the_user_reads_why() -> None:
    model = ScriptedModel(AGAIN, AGAIN, AGAIN)
    async with FakeEngine(model, tools=CATALOG, max_rounds=1) as engine:
        events = await engine.turn("Search!")
        assert len(engine.worker.executed) == 1

    assert [bool(request.tools) for request in model.requests] == [True, True, False]
    assert "used up the tool calls" in text_of(events)
    assert done_of(events).reason is DoneReason.MAX_ROUNDS


@promise("a call that a limit cuts off is tried once more, and then the turn ends as cut")
async def test_a_call_that_is_cut_off_by_the_length_limit_is_made_once_more() -> None:
    cut = ToolCallEvent("call_1", "web__search", '{"for": "a very', problem="your reply reached its length limit")
    model = ScriptedModel([cut, StreamEnd(FinishReason.LENGTH)], [cut, StreamEnd(FinishReason.LENGTH)])
    async with FakeEngine(model, tools=CATALOG) as engine:
        events = await engine.turn("Search!")

    assert "your reply reached its length limit" in model.requests[1].messages[-1].content
    assert "limit of my reply cut off" in text_of(events)
    assert done_of(events).reason is DoneReason.LENGTH
