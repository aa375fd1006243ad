"""The side band: the only reader of the model's stream, which shows the user what comes."""

import gc
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.errors import LLMError, LLMRateLimitedError, LLMStreamBrokenError
from dialog_engine.model import (
    ChatEvent,
    ChatRequest,
    FinishReason,
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    ToolCallEvent,
    Turn,
    Usage,
    UserMessage,
)
from dialog_engine.sideband import Reply, TextBuffer, fork
from tests.support.fakes.models import Line, MemoryBand, ScriptedModel

CALL = ToolCallEvent("call_1", "a__b", "{}")
END = StreamEnd(FinishReason.TOOL_CALLS, Usage(3, 4))
REQUEST = ChatRequest((UserMessage("Hi"),), Turn("turn", "session", "subject"))


async def forked(*lines: Line) -> tuple[Reply | Exception, list[ChatEvent]]:
    """What the pipeline gets of the stream, and what the user sees."""
    band = MemoryBand()
    try:
        return await fork(await ScriptedModel(lines)(REQUEST), band), band.events
    except LLMError as error:
        return error, band.events


async def test_the_user_gets_text_and_reasoning_in_order_and_the_pipeline_all_of_it() -> None:
    pieces = [ReasoningDelta("hm"), TextDelta("Let "), TextDelta("me "), ReasoningDelta("!")]

    reply, seen = await forked(*pieces, CALL, TextDelta("see."), CALL, END)

    assert seen == [*pieces, TextDelta("see.")]
    assert reply == Reply("Let me see.", "hm!", (CALL, CALL), FinishReason.TOOL_CALLS, Usage(3, 4))


async def test_a_stream_without_its_end_is_broken() -> None:
    error, seen = await forked(TextDelta("a"))

    assert isinstance(error, LLMStreamBrokenError)
    assert seen == [TextDelta("a")]


async def test_an_error_of_the_stream_comes_after_its_events_and_closes_it() -> None:
    model, band = ScriptedModel([TextDelta("a"), LLMRateLimitedError("no")]), MemoryBand()

    with pytest.raises(LLMRateLimitedError):
        await fork(await model(REQUEST), band)

    assert (band.events, model.open) == ([TextDelta("a")], 0)


async def test_a_stream_with_nothing_in_it_never_opens() -> None:
    with pytest.raises(LLMStreamBrokenError):
        await ScriptedModel([])(REQUEST)


@pytest.mark.parametrize("field", ["tool_call_id", "name", "arguments"])
async def test_a_call_counts_with_all_that_is_kept_of_it(field: str) -> None:
    call = replace(CALL, **{field: "x" * 1_000})

    reply = await fork(await ScriptedModel([call, END])(REQUEST), MemoryBand(), max_bytes=900)

    assert (reply.tool_calls, reply.finish_reason) == ((), FinishReason.LENGTH)


# --- TextBuffer holds the text it was given, in little more memory than its characters take ---


@given(st.lists(st.text(st.characters(), max_size=3), max_size=100))
def test_the_text_is_what_was_added(pieces: list[str]) -> None:
    text = TextBuffer()
    for piece in pieces:
        text.add(piece)
    assert str(text) == "".join(pieces)


def test_thousands_of_tokens_take_little_more_memory_than_their_characters() -> None:
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        text = TextBuffer()
        for number in range(10_000):
            text.add(f"{number:06}")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2 * len(str(text))
