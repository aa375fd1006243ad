"""The pipeline: seven stateless steps, and `enhance`, which wraps a chat client in them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from dialog_engine.errors import LLMStreamEmptyError, StorageUnavailableError
from dialog_engine.model import (
    ChatEvent,
    ChatRequest,
    FinishReason,
    MessageFinished,
    ReasoningDelta,
    StreamEnd,
    SystemMessage,
    TextDelta,
    TokensSpent,
    ToolCallEvent,
    ToolStatus,
    ToolStep,
    Usage,
    UserMessage,
)
from dialog_engine.tool_calls.pipeline import enhance
from dialog_engine.tool_calls.planning import EMPTY_NOTE
from dialog_engine.tool_calls.ports import OpenChat, ToolSource
from dialog_engine.tool_calls.processors import TOO_LONG
from dialog_engine.tool_calls.prompt_mode.function_calls import FUNCTION_CALLS
from dialog_engine.tool_calls.prompt_mode.modes import in_prompt_mode
from plugins_contract.catalog import ToolEntry
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.fakes.engine import FakeEngine, read_all
from tests.support.fakes.models import SPENT, Line, ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, tool
from tests.support.waiting import wait_until

SHELF = FakeCatalog(tool("a__b"))


@dataclass(eq=False)
class World(FakeEngine):
    """A pipeline among fakes, and turns to run in it."""

    model: OpenChat = field(default_factory=ScriptedModel)
    tools: ToolSource = SHELF
    max_rounds: int = 3

    async def request(self, text: str = "Hello!") -> ChatRequest:
        turn = await begin(self.store.turns, "someone", None, text)
        return ChatRequest((UserMessage(text),), turn)

    async def run(self, *replies: Sequence[Line]) -> tuple[ScriptedModel, list[ChatEvent]]:
        model = ScriptedModel(*replies)
        request = await self.request()
        return model, [event async for event in await enhance(model, self.pipeline)(request)]


@promise("usage is summed over rounds")
async def test_the_end_carries_the_usage_of_all_rounds() -> None:
    _, events = await World().run(asks(("a__b", "")), asks(("a__b", "")), says("x"))

    assert events[-1] == StreamEnd(FinishReason.STOP, SPENT + SPENT + SPENT)


async def test_the_system_prompt_comes_first_in_every_round_and_once() -> None:
    model, _ = await World(system_prompt="Be brief.").run(asks(("a__b", "")), says("x"))

    for request in model.requests:
        assert [m for m in request.messages if isinstance(m, SystemMessage)] == [SystemMessage("Be brief.")]
        assert request.messages[0] == SystemMessage("Be brief.")


async def test_the_tools_of_a_turn_stay_the_same_while_it_runs() -> None:
    class Fading(FakeCatalog):
        asked = 0

        def tools(self) -> tuple[ToolEntry, ...]:
            self.asked += 1
            return super().tools() if self.asked == 1 else ()

    world = World(tools=Fading(tool("a__b")))

    model, _ = await world.run(asks(("a__b", "")), says("x"))

    assert [len(request.tools) for request in model.requests] == [1, 1]


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
async def test_a_last_answer_that_is_cut_off_keeps_its_finish_reason(finish: FinishReason) -> None:
    _, events = await World(max_rounds=1).run(asks(("a__b", "")), says("As far as", finish))

    assert events[-1] == StreamEnd(finish, SPENT + SPENT)


async def test_a_last_reply_of_tool_calls_and_text_keeps_its_text_only() -> None:
    _, events = await World(max_rounds=1).run(asks(("a__b", "")), asks(("a__b", ""), text="I would have to ask."))

    assert [event for event in events if isinstance(event, TextDelta)] == [TextDelta("I would have to ask.")]
    assert len([event for event in events if isinstance(event, MessageFinished)]) == 1


CUT_CALL = ToolCallEvent("call_1", "a__b", '{"x": "unfin', problem="the reply was cut off inside this call")
CUT: list[Line] = [CUT_CALL, StreamEnd(FinishReason.LENGTH, SPENT)]
WHOLE_AND_CUT: list[Line] = [ToolCallEvent("call_2", "a__b", "{}"), *CUT]


@promise("a call that a limit cuts off is tried once more, and then the turn ends as cut")
@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
@pytest.mark.parametrize(("text", "sent"), [("", TOO_LONG), ("Let me write it.", "Let me write it.")])
async def test_a_call_that_is_cut_off_twice_is_not_tried_a_third_time(
    finish: FinishReason, text: str, sent: str
) -> None:
    again: list[Line] = [*([TextDelta(text)] if text else ()), CUT_CALL, StreamEnd(finish, SPENT)]
    world = World(max_rounds=9)
    model, events = await world.run(CUT, again, says("never"))

    assert len(model.requests) == 2
    assert [event.text for event in events if isinstance(event, TextDelta)] == [sent]
    assert events[-1] == StreamEnd(finish, SPENT + SPENT)
    assert world.worker.executed == []


@promise("a call that a limit cuts off is tried once more, and then the turn ends as cut")
async def test_a_reply_that_is_cut_off_after_a_complete_call_continues() -> None:
    world = World(max_rounds=9)
    model, events = await world.run(CUT, WHOLE_AND_CUT, CUT, WHOLE_AND_CUT, CUT, says("Done."))

    assert len(model.requests) == 6
    assert len(world.worker.executed) == 2
    assert events[-1] == StreamEnd(FinishReason.STOP, sum([SPENT] * 5, SPENT))


NOTHING: list[Line] = [ReasoningDelta("hm"), TextDelta(" \n"), StreamEnd(FinishReason.STOP, SPENT)]
COPY = says("<function_results><result><stdout>done</stdout></result></function_results>")
CALL = says('<function_calls><invoke name="a__b"></invoke></function_calls>')


def as_is(model: OpenChat) -> OpenChat:
    return model


def in_tags(model: OpenChat) -> OpenChat:
    return in_prompt_mode(model, FUNCTION_CALLS)


@promise("an answer is never empty: the model is asked once more, then the turn ends with an error that says so")
@pytest.mark.parametrize(
    ("mode", "call", "empty"),
    [(as_is, asks(("a__b", "")), NOTHING), (in_tags, CALL, COPY)],
    ids=["an empty reply", "a copied result"],
)
@pytest.mark.parametrize(
    ("rounds", "asked"),
    [("ea", 2), ("cea", 3), ("ecea", 4), ("ceca", 4)],
    ids=["at once", "after a call", "twice, with a call in between", "before a call"],
)
async def test_a_reply_with_nothing_for_the_user_is_asked_for_once_more(
    mode: Callable[[OpenChat], OpenChat], call: list[Line], empty: list[Line], rounds: str, asked: int
) -> None:
    world, model = World(), ScriptedModel(*({"e": empty, "c": call, "a": says("Done.")}[each] for each in rounds))
    request = await world.request()
    events = [event async for event in await enhance(mode(model), world.pipeline)(request)]

    assert len(model.requests) == asked
    after = model.requests[rounds.index("e") + 1].messages[-1]
    assert not isinstance(after, SystemMessage)
    assert EMPTY_NOTE in after.content
    assert [EMPTY_NOTE in str(request.messages) for request in model.requests].count(True) == rounds.count("e")
    assert "".join(event.text for event in events if isinstance(event, TextDelta)).strip() == "Done."
    assert events[-1] == StreamEnd(FinishReason.STOP, sum([SPENT] * (asked - 1), SPENT))
    # What is committed with a round is what an engine that takes the turn up goes on from.
    committed = rounds.rindex("c") + 1 if "c" in rounds else 0
    assert world.store.usage(request.turn) == sum([SPENT] * committed, Usage())


@promise("an answer is never empty: the model is asked once more, then the turn ends with an error that says so")
async def test_a_model_that_says_nothing_twice_ends_the_turn_with_an_error_and_both_are_counted() -> None:
    seen, error = await read_all(
        enhance(ScriptedModel(NOTHING, NOTHING), (world := World()).pipeline)(await world.request())
    )

    assert isinstance(error, LLMStreamEmptyError)
    assert seen[-1] == TokensSpent(SPENT + SPENT)


@promise("an answer is never empty: the model is asked once more, then the turn ends with an error that says so")
@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
async def test_a_limit_or_a_filter_explains_a_reply_of_nothing(finish: FinishReason) -> None:
    model, events = await World().run([StreamEnd(finish, SPENT)])

    assert (len(model.requests), events[-1]) == (1, StreamEnd(finish, SPENT))


@promise("the depth of a turn lives in its context")
async def test_two_turns_go_through_the_same_objects_at_once_and_do_not_mix() -> None:
    world = World(max_rounds=2)
    first, second = asyncio.Event(), asyncio.Event()
    deep = ScriptedModel(asks(("a__b", "")), asks(("a__b", "")), [first, *says("deep")])
    flat = ScriptedModel([second, *says("flat")])

    async def ended(model: OpenChat) -> ChatEvent:
        events, _ = await read_all(enhance(model, world.pipeline)(await world.request()))
        return events[-1]

    one, two = asyncio.create_task(ended(deep)), asyncio.create_task(ended(flat))
    await wait_until(lambda: len(deep.requests) == 3 and len(flat.requests) == 1)
    second.set()
    first.set()

    assert await one == StreamEnd(FinishReason.MAX_ROUNDS, SPENT + SPENT + SPENT)
    assert await two == StreamEnd(FinishReason.STOP, SPENT)
    assert flat.requests[0].tools == SHELF.tools()


async def test_a_round_that_cannot_be_committed_ends_the_stream_and_no_call_begins() -> None:
    world = World()
    world.store.refuse["add_round"] = StorageUnavailableError("the disk is full")
    model = ScriptedModel(asks(("a__b", ""), text="Let me see."))

    seen, error = await read_all(enhance(model, world.pipeline)(await world.request()))

    assert isinstance(error, StorageUnavailableError)
    assert not any(isinstance(event, (MessageFinished, ToolStep)) for event in seen)
    assert world.worker.executed == []


@promise("an enhanced client has the interface of the client it wraps")
async def test_an_enhanced_client_can_be_enhanced_again() -> None:
    inner = World()
    outer = World(system_prompt="outer", store=inner.store)
    model = ScriptedModel(asks(("a__b", "")), says("x"))
    request = await inner.request()

    twice: OpenChat = enhance(enhance(model, inner.pipeline), outer.pipeline)
    events = [event async for event in await twice(request)]

    assert [e.status for e in events if isinstance(e, ToolStep)][-1] is ToolStatus.SUCCEEDED
    assert [event for event in events if isinstance(event, TextDelta)] == [TextDelta("x")]
    assert events[-1] == StreamEnd(FinishReason.STOP, Usage(20, 10))
    assert len([event for event in events if isinstance(event, StreamEnd)]) == 1
