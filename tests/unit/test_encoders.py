"""Every encoder, over random logs: what holds for each protocol, whoever reads a turn, where and when."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog_engine.chat.events import Batch, Cursor, Frame
from dialog_engine.facades.ai_sdk import AiSdkEncoder, Version
from dialog_engine.facades.chat_chunks import ChunkEncoder, Steps
from dialog_engine.facades.chat_chunks import Form as ChatForm
from dialog_engine.facades.encoder import EPOCH_SHIFT, Encoder, Output
from dialog_engine.facades.responses_encoder import Form, ResponseEncoder
from dialog_engine.facades.stream import Part, outputs
from tests.marks import promise
from tests.support.official_types import chat_chunks, response_events, ui_chunks
from tests.support.random_turns import TURN, RandomTurn, random_turns

SAID: dict[str, Any] = {
    "model": "m",
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
}


@dataclass(frozen=True)
class Spoken:
    """A protocol. `accept` raises unless the official types do; `delta` is in each output that is a piece of text."""

    encoder: Callable[[], Encoder]
    accept: Callable[[Sequence[Output]], object]
    delta: bytes


def _data(sent: Sequence[Output]) -> bytes:
    return b"".join(output.data for output in sent)


def _ai_sdk(version: Version) -> Spoken:
    return Spoken(partial(AiSdkEncoder, version), lambda sent: ui_chunks(_data(sent), version), b'"text-delta"')


def _chat(steps: Steps) -> Spoken:
    encoder = partial(ChunkEncoder, ChatForm("m", steps, usage=True))
    return Spoken(encoder, lambda sent: chat_chunks(_data(sent)), b'"delta":{"content":"')


PROTOCOLS = {
    **{f"Chat Completions, {steps}": _chat(steps) for steps in Steps},
    "Responses": Spoken(
        partial(ResponseEncoder, Form(TURN, SAID)), response_events, b"event: response.output_text.delta"
    ),
    "AI SDK 5": _ai_sdk(5),
    "AI SDK 6": _ai_sdk(6),
    "AI SDK 7": _ai_sdk(7),
}
each_protocol = pytest.mark.parametrize("spoken", PROTOCOLS.values(), ids=PROTOCOLS)
with_time = settings(deadline=None, max_examples=30)
"""The package `openai` builds its types when they are first used."""


def encoded(spoken: Spoken, frames: Sequence[Frame]) -> list[Output]:
    encoder = spoken.encoder()
    return [output for frame in frames for output in encoder.feed(frame)]


async def batched(frames: Sequence[Frame], size: int) -> AsyncGenerator[Batch]:
    for place in range(0, len(frames), size):
        yield frames[place : place + size]


async def read(spoken: Spoken, frames: Sequence[Frame], after: int, size: int) -> bytes:
    """What a reader gets that has the outputs up to a number, through all requests for the turn."""

    async def again() -> AsyncGenerator[Batch]:
        raise AssertionError("the log is read once")

    part = Part(after, beyond=Cursor.parse(frames[-1].id))
    return b"".join([data async for data in outputs(batched(frames, size), spoken.encoder, part, again)])


@promise("what another protocol's client gets of a turn is the same at every engine, live and replayed")
@each_protocol
@with_time
@given(turn=random_turns())
def test_outputs_count_from_one_in_each_epoch_and_the_official_types_accept_them(
    spoken: Spoken, turn: RandomTurn
) -> None:
    encoder, counts, every = spoken.encoder(), Counter[int](), list[Output]()
    for frame in turn.frames:
        epoch = Cursor.parse(frame.id).epoch
        for output in encoder.feed(frame):
            counts[epoch] += 1
            assert output.number == epoch << EPOCH_SHIFT | counts[epoch]
            every.append(output)
    spoken.accept(every)
    assert every[-1].last


@promise("what another protocol's client gets of a turn is the same at every engine, live and replayed")
@each_protocol
@with_time
@given(turn=random_turns(), size=st.integers(1, 9), data=st.data())
async def test_a_reader_from_any_position_gets_the_same_rest(
    spoken: Spoken, turn: RandomTurn, size: int, data: st.DataObject
) -> None:
    every = encoded(spoken, turn.frames)
    place = data.draw(st.integers(0, len(every) - 1))
    after, rest = every[place].number, every[place + 1 :]
    if rest and rest[0].number >> EPOCH_SHIFT > after >> EPOCH_SHIFT:
        after += data.draw(st.integers(0, 3))  # it has also got what the engine had not stored when it died
    assert await read(spoken, turn.frames, after, size) == _data(rest)


@promise("what another protocol's client gets of a turn is the same at every engine, live and replayed")
@each_protocol
@with_time
@given(turn=random_turns(), size=st.integers(1, 9), data=st.data())
async def test_when_the_log_is_gone_a_message_is_one_delta_and_a_reader_of_the_log_gets_the_end(
    spoken: Spoken, turn: RandomTurn, size: int, data: st.DataObject
) -> None:
    every = encoded(spoken, turn.rebuilt)
    spoken.accept(every)
    assert sum(spoken.delta in output.data for output in every) == sum(map(bool, turn.texts))
    assert every[-1].number < 1 << 53, "exact in JavaScript"
    after = data.draw(st.sampled_from([output.number for output in encoded(spoken, turn.frames)]))
    assert await read(spoken, turn.rebuilt, after, size) == _data([output for output in every if output.last])
    assert every[-1].last


@promise("what another protocol's client gets of a turn is the same at every engine, live and replayed")
@each_protocol
@with_time
@given(turn=random_turns(), data=st.data())
async def test_what_only_one_reader_gets_has_numbers_that_no_other_reader_has(
    spoken: Spoken, turn: RandomTurn, data: st.DataObject
) -> None:
    """A log may be lost in the middle of its epoch, for a reader that is there just then."""
    place = data.draw(st.integers(1, len(turn.frames) - 2))
    is_new = data.draw(st.booleans())
    lost = turn.lost(place, is_new=is_new)
    got = [*(() if is_new else turn.frames[:place]), lost, *turn.frames[place + 1 :]]
    others = {output.number: output.data for output in encoded(spoken, turn.frames)}
    epoch = Cursor.parse(lost.id).epoch
    sent = encoded(spoken, got)
    spoken.accept(sent)
    until = [output for output in sent if output.number >> EPOCH_SHIFT <= epoch]

    assert all(others.get(output.number, output.data) == output.data for output in until)
    for each in [output for output in until if output.number not in others]:
        rest = [output for output in encoded(spoken, turn.frames) if output.is_new(each.number)]
        assert all(output.last or output.number >> EPOCH_SHIFT > epoch for output in rest)
