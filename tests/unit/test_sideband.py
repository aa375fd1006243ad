"""The side band: the only reader of the model's stream, which shows the user what comes."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from dialog_engine.errors import LLMError, LLMRateLimitedError, LLMStreamBrokenError
from dialog_engine.model import (
    ChatEvent,
    ChatRequest,
    FinishReason,
    ReasoningDelta,
    RoundComplete,
    StreamEnd,
    TextDelta,
    ToolCallEvent,
    Turn,
    Usage,
    UserMessage,
)
from dialog_engine.sideband import ModelStream, Reply, fork
from tests.support.fakes import Line, MemoryBand, ScriptedModel, breathe
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

CALL = ToolCallEvent("call_1", "a__b", "{}")
END = StreamEnd(FinishReason.TOOL_CALLS, Usage(3, 4))
REQUEST = ChatRequest((UserMessage("Hi"),), Turn("turn", "session", "subject"))


async def stream(lines: Sequence[Line]) -> AsyncGenerator[ChatEvent]:
    for line in lines:
        match line:
            case Exception():
                raise line
            case asyncio.Event():
                await line.wait()
            case _:
                yield line


async def forked(*lines: Line) -> tuple[Reply | Exception, list[ChatEvent]]:
    """What the pipeline gets of the stream, and what the user sees."""
    band = MemoryBand()
    try:
        return await fork(await ModelStream.begun(stream(lines)), band), band.events
    except LLMError as error:
        return error, band.events


async def test_the_user_gets_text_and_reasoning_in_order_and_the_pipeline_all_of_it() -> None:
    pieces = [ReasoningDelta("hm"), TextDelta("Let "), TextDelta("me "), ReasoningDelta("!"), TextDelta("see.")]

    reply, seen = await forked(*pieces, CALL, END)

    assert seen == pieces
    assert reply == Reply("Let me see.", "hm!", (CALL,), FinishReason.TOOL_CALLS, Usage(3, 4))


async def test_text_after_a_tool_call_is_shown_and_kept_too() -> None:
    reply, seen = await forked(TextDelta("a"), CALL, TextDelta("b"), CALL, END)

    assert seen == [TextDelta("a"), TextDelta("b")]
    assert isinstance(reply, Reply)
    assert (reply.text, reply.tool_calls) == ("ab", (CALL, CALL))


async def test_tool_calls_alone_show_nothing() -> None:
    reply, seen = await forked(CALL, END)

    assert seen == []
    assert isinstance(reply, Reply)


async def test_the_steps_of_an_enhanced_client_pass_through() -> None:
    _, seen = await forked(RoundComplete(1), TextDelta("x"), END)

    assert seen == [RoundComplete(1), TextDelta("x")]


async def test_a_stream_without_its_end_is_broken() -> None:
    error, seen = await forked(TextDelta("a"))

    assert isinstance(error, LLMStreamBrokenError)
    assert seen == [TextDelta("a")]


async def test_an_error_of_the_stream_comes_after_its_events() -> None:
    refusal = LLMRateLimitedError("too many requests")

    error, seen = await forked(TextDelta("a"), refusal)

    assert error is refusal
    assert seen == [TextDelta("a")]


async def test_a_stream_with_nothing_in_it_never_opens() -> None:
    with pytest.raises(LLMStreamBrokenError):
        await ModelStream.begun(stream([]))


async def test_an_error_before_the_first_event_is_raised_by_opening() -> None:
    with pytest.raises(LLMRateLimitedError):
        await ModelStream.begun(stream([LLMRateLimitedError("no")]))


async def test_the_stream_is_closed_when_it_fails() -> None:
    model = ScriptedModel([TextDelta("a"), LLMRateLimitedError("no")])

    with pytest.raises(LLMRateLimitedError):
        await fork(await model(REQUEST), MemoryBand())

    assert model.open == 0


async def test_text_is_passed_on_while_the_model_still_streams() -> None:
    band, more = MemoryBand(), asyncio.Event()
    model = ScriptedModel([TextDelta("a"), more, TextDelta("b"), END])
    work = asyncio.create_task(fork(await model(REQUEST), band))
    await wait_until(lambda: band.events == [TextDelta("a")])
    assert not work.done()
    more.set()
    assert (await work).text == "ab"
    assert band.events == [TextDelta("a"), TextDelta("b")]


async def test_nothing_is_read_or_shown_before_the_turn_is_committed() -> None:
    band = MemoryBand(commit := asyncio.Event())
    model = ScriptedModel([TextDelta("a"), TextDelta("b"), END])
    work = asyncio.create_task(fork(await model(REQUEST), band))
    await breathe()
    assert (band.events, model.open) == ([], 1)
    commit.set()
    assert (await work).text == "ab"


async def test_a_stream_whose_turn_is_not_committed_is_closed() -> None:
    model = ScriptedModel([TextDelta("a"), END])
    work = asyncio.create_task(fork(await model(REQUEST), MemoryBand(asyncio.Event())))
    await breathe()
    work.cancel()
    await asyncio.wait([work])
    assert model.open == 0


@pytest.mark.parametrize("field", ["tool_call_id", "name", "arguments"])
async def test_a_call_counts_with_all_that_is_kept_of_it(field: str) -> None:
    call = replace(CALL, **{field: "x" * 1_000})

    reply = await fork(await ModelStream.begun(stream([call, END])), MemoryBand(), max_bytes=900)

    assert (reply.tool_calls, reply.finish_reason) == ((), FinishReason.LENGTH)
