"""The side band: the only reader of the model's stream, which carries all events to the user."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from dialog_engine.errors import LLMRateLimitedError, LLMStreamBrokenError
from dialog_engine.model import (
    ChatEvent,
    FinishReason,
    ReasoningDelta,
    RoundComplete,
    StreamEnd,
    TextDelta,
    ToolCallEvent,
    Usage,
)
from dialog_engine.sideband import Reply, SideBand
from tests.support.fakes import Line, ScriptedModel, breathe, read_all
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

CALL = ToolCallEvent("call_1", "a__b", "{}")
END = StreamEnd(FinishReason.TOOL_CALLS, Usage(3, 4))


async def stream(lines: Sequence[Line]) -> AsyncGenerator[ChatEvent]:
    for line in lines:
        match line:
            case Exception():
                raise line
            case asyncio.Event():
                await line.wait()
            case _:
                yield line


async def carried(band: SideBand, work: asyncio.Task[None]) -> list[ChatEvent]:
    return [event async for event in band.carry(work)]


async def forked(*lines: Line) -> tuple[Reply | Exception, list[ChatEvent]]:
    """What the pipeline gets of the stream, and what the user sees."""
    band = SideBand()
    work = asyncio.create_task(band.fork(stream(lines)))
    seen, error = await read_all(band.carry(work))
    return error or work.result(), seen


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


async def test_the_stream_is_closed_when_it_fails() -> None:
    model = ScriptedModel([TextDelta("a"), LLMRateLimitedError("no")])
    band = SideBand()

    with pytest.raises(LLMRateLimitedError):
        await band.fork(model(None))  # pyright: ignore[reportArgumentType] -- the request does not matter here

    assert model.open == 0


async def test_text_is_passed_on_while_the_model_still_streams() -> None:
    band = SideBand()
    more = asyncio.Event()
    work = asyncio.create_task(band.fork(stream([TextDelta("a"), more, TextDelta("b"), END])))
    async with aclosing(band.carry(work)) as events:
        assert await anext(events) == TextDelta("a")
        assert not work.done()
        more.set()
        assert await anext(events) == TextDelta("b")


async def test_no_event_is_dropped_however_slow_the_reader_is() -> None:
    band = SideBand()
    written = [TextDelta(str(n)) for n in range(500)]

    async def write() -> None:
        for event in written:
            band.emit(event)
            if len(event.text) == 2:
                await asyncio.sleep(0)

    work = asyncio.create_task(write())
    seen: list[ChatEvent] = []
    async for event in band.carry(work):
        seen.append(event)
        await asyncio.sleep(0)

    assert seen == written


async def test_the_last_event_is_carried() -> None:
    band = SideBand()

    async def write() -> None:
        await asyncio.sleep(0)
        band.emit(TextDelta("last"))

    assert await carried(band, asyncio.create_task(write())) == [TextDelta("last")]


async def test_all_events_of_finished_work_are_carried() -> None:
    band = SideBand()

    async def write() -> None:
        band.emit(TextDelta("early"))

    work = asyncio.create_task(write())
    await work
    assert await carried(band, work) == [TextDelta("early")]


async def test_closing_ends_the_work_before_it_returns() -> None:
    band = SideBand()
    cleaned = False

    async def write() -> None:
        nonlocal cleaned
        band.emit(TextDelta("a"))
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    work = asyncio.create_task(write())
    events = band.carry(work)
    assert await anext(events) == TextDelta("a")
    await events.aclose()

    assert cleaned
    assert work.cancelled()


async def test_a_cancelled_reader_still_gets_the_last_events() -> None:
    band = SideBand()

    async def write() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            band.emit(TextDelta("committed"))

    seen: list[ChatEvent] = []

    async def read() -> None:
        async with aclosing(band.carry(asyncio.create_task(write()))) as events:
            async for event in events:
                seen.append(event)  # noqa: PERF401 -- it is cancelled on the way

    reader = asyncio.create_task(read())
    await breathe()
    reader.cancel()
    await asyncio.wait([reader])

    assert reader.cancelled()
    assert seen == [TextDelta("committed")]


async def test_work_that_fails_while_it_is_cancelled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    band = SideBand()

    async def write() -> None:
        band.emit(TextDelta("a"))
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("the connection would not close")

    events = band.carry(asyncio.create_task(write(), name="work"))
    await anext(events)
    await events.aclose()

    assert "the connection would not close" in caplog.text


async def test_a_failure_after_the_reader_has_gone_is_not_reported_by_asyncio() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    band = SideBand()

    async def write() -> None:
        band.emit(TextDelta("a"))
        band.emit(TextDelta("b"))
        raise ValueError("not seen")

    work = asyncio.create_task(write())
    events = band.carry(work)
    await anext(events)
    await wait_until(work.done)
    await events.aclose()
    del work, events
    await breathe()

    assert complaints == []


@pytest.mark.parametrize("field", ["tool_call_id", "name", "arguments"])
async def test_a_call_counts_with_all_that_is_kept_of_it(field: str) -> None:
    call = replace(CALL, **{field: "x" * 1_000})

    reply = await SideBand().fork(stream([call, END]), max_bytes=900)

    assert (reply.tool_calls, reply.finish_reason) == ((), FinishReason.LENGTH)
