"""Every encoder, over random logs: what holds for each protocol, whoever reads a turn, where and when."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from dialog_engine.chat.events import REBUILT_SEQ, RESET, Batch, Cursor, Frame
from dialog_engine.facades.ai_sdk.encoder import AiSdkEncoder, Version
from dialog_engine.facades.chat_completions.chunks import ChunkEncoder, Steps
from dialog_engine.facades.chat_completions.chunks import Form as ChatForm
from dialog_engine.facades.encoder import EPOCH_SHIFT, Encoder, Lacking, Output
from dialog_engine.facades.responses.encoder import Form, ResponseEncoder
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
    """A protocol. `accept` raises unless the official types do; `delta` is in each output that is a piece of text.
    `whole`: what is encoded of a turn that waits for nobody has all of its texts."""

    encoder: Callable[[], Encoder]
    accept: Callable[[Sequence[Output]], object]
    delta: bytes
    whole: bool = True


def _data(sent: Sequence[Output]) -> bytes:
    return b"".join(output.data for output in sent)


def _ai_sdk(version: Version) -> Spoken:
    return Spoken(partial(AiSdkEncoder, version), lambda sent: ui_chunks(_data(sent), version), b'"text-delta"')


def _chat(steps: Steps) -> Spoken:
    encoder = partial(ChunkEncoder, ChatForm("m", steps, usage=True))
    return Spoken(encoder, lambda sent: chat_chunks(_data(sent)), b'"delta":{"content":"')


def _responses(answered: str = "") -> Spoken:
    encoder = partial(ResponseEncoder, Form(TURN, SAID, answered))
    return Spoken(encoder, response_events, b"event: response.output_text.delta", whole=not answered)


PROTOCOLS = {
    **{f"Chat Completions, {steps}": _chat(steps) for steps in Steps},
    "Responses": _responses(),
    **{f"Responses, behind call {each}": _responses(f"id-{each}") for each in ("1-0", "2-1")},
    "AI SDK 5": _ai_sdk(5),
    "AI SDK 6": _ai_sdk(6),
    "AI SDK 7": _ai_sdk(7),
}
each_protocol = pytest.mark.parametrize("spoken", PROTOCOLS.values(), ids=PROTOCOLS)
with_time = settings(deadline=None, max_examples=settings().max_examples // 3)
"""The package `openai` builds its types when they are first used. Each test has these examples for each protocol."""
adopted_turns = random_turns().filter(lambda turn: bool(turn.resets))


def encoded(spoken: Spoken, frames: Sequence[Frame]) -> list[Output]:
    encoder = spoken.encoder()
    return [output for frame in frames for output in encoder.feed(frame)]


def lacking(every: Sequence[Output], after: int) -> list[Output]:
    """What a client lacks of the outputs that has got those up to a number."""
    client = Lacking(after)
    return [output for output in every if client.has(output, ends=output is every[-1])]


def adoptions(turn: RandomTurn) -> list[int]:
    """The places of the log where an adopter's epoch begins."""
    return [place - 1 for place, frame in enumerate(turn.frames) if frame.name == RESET]


def with_a_loss(turn: RandomTurn, place: int, data: st.DataObject) -> list[Frame]:
    """What a reader gets whose log is lost up to this place, in the middle or from the beginning on."""
    is_new = data.draw(st.booleans())
    return [*(() if is_new else turn.frames[:place]), turn.lost(place, is_new=is_new), *turn.frames[place + 1 :]]


def is_over(turn: RandomTurn, place: int) -> bool:
    """Whether the first response of the turn has ended before this place of the log."""
    return any(frame.says_waiting for frame in turn.frames[:place])


async def batched(frames: Sequence[Frame], size: int) -> AsyncGenerator[Batch]:
    for place in range(0, len(frames), size):
        yield frames[place : place + size]


def read(spoken: Spoken, frames: Sequence[Frame], after: int, size: int) -> bytes:
    """What a reader gets that has the outputs up to a number, through all requests for the turn.

    Hypothesis ends an example with an exception of its own, which must not pass through the task of an async test.
    """

    async def again() -> AsyncGenerator[Batch]:
        raise AssertionError("the log is read once")

    async def data() -> bytes:
        part = Part(after, beyond=Cursor.parse(frames[-1].id))
        return b"".join([data async for data in outputs(batched(frames, size), spoken.encoder, part, again)])

    return asyncio.run(data())


@promise("what another protocol's client gets of a turn is the same at every engine, live and replayed")
@each_protocol
@with_time
@given(turn=random_turns())
def test_numbers_rise_in_each_epoch_and_the_official_types_accept_the_outputs(spoken: Spoken, turn: RandomTurn) -> None:
    encoder, every = spoken.encoder(), list[Output]()
    for frame in turn.frames:
        for output in encoder.feed(frame):
            assert output.number >> EPOCH_SHIFT == Cursor.parse(frame.id).epoch
            assert not every or output.number > every[-1].number
            every.append(output)
    spoken.accept(every)
    assert every[-1].last


@promise("what another protocol's client gets of a turn is the same at every engine, live and replayed")
@each_protocol
@with_time
@given(turn=random_turns(), size=st.integers(1, 9), data=st.data())
def test_a_reader_from_any_position_gets_the_same_rest(
    spoken: Spoken, turn: RandomTurn, size: int, data: st.DataObject
) -> None:
    every = encoded(spoken, turn.frames)
    place = data.draw(st.integers(0, len(every) - 1))
    assert read(spoken, turn.frames, every[place].number, size) == _data(every[place + 1 :])


@promise("what another protocol's client gets of a turn is the same at every engine, live and replayed")
@each_protocol
@with_time
@given(turn=random_turns(), size=st.integers(1, 9), data=st.data())
def test_when_the_log_is_gone_a_message_is_one_delta_and_a_reader_of_the_log_gets_the_end(
    spoken: Spoken, turn: RandomTurn, size: int, data: st.DataObject
) -> None:
    every = encoded(spoken, turn.rebuilt)
    spoken.accept(every)
    deltas = sum(spoken.delta in output.data for output in every)
    assert deltas == sum(map(bool, turn.texts)) if spoken.whole else deltas <= len(turn.texts)
    assert every[-1].number < 1 << 53, "exact in JavaScript"
    after = data.draw(st.sampled_from([output.number for output in encoded(spoken, turn.frames)]))
    assert read(spoken, turn.rebuilt, after, size) == _data([output for output in every if output.last])
    assert every[-1].last


@promise("what another protocol's client gets of a turn is the same at every engine, live and replayed")
@each_protocol
@with_time
@given(turn=random_turns(), data=st.data())
def test_what_only_one_reader_gets_has_numbers_that_no_other_reader_has(
    spoken: Spoken, turn: RandomTurn, data: st.DataObject
) -> None:
    """A log may be lost in the middle of its epoch, for a reader that is there just then."""
    got, other = (with_a_loss(turn, data.draw(st.integers(1, len(turn.frames) - 2)), data) for _ in range(2))
    others = {output.number: output.data for output in encoded(spoken, turn.frames)}
    sent = encoded(spoken, got)
    spoken.accept(sent)

    assert all(others.get(output.number, output.data) == output.data for output in sent)
    lost = next(Cursor.parse(frame.id).epoch for frame in got if frame.says_lost)
    assert not any(output.number in others for output in sent if output.number >> EPOCH_SHIFT > lost)
    for each in [output for output in sent if output.number not in others]:
        for frames in (turn.frames, other):
            assert all(output.last for output in lacking(encoded(spoken, frames), each.number))


@each_protocol
@with_time
@given(turn=random_turns())
def test_behind_a_part_of_a_parked_turn_that_was_rebuilt_comes_only_the_end_because_it_may_be_decided_since(
    spoken: Spoken, turn: RandomTurn
) -> None:
    frames = [structs.replace(frame, id=f"1-{REBUILT_SEQ + n}") for n, frame in enumerate(turn.rebuilt)]
    every = encoded(spoken, frames)
    assert all(output.last for each in every for output in lacking(every, each.number))


@promise("what another protocol's client gets of a turn is the same at every engine, live and replayed")
@each_protocol
@with_time
@given(turn=adopted_turns, data=st.data())
def test_a_reader_without_the_earlier_epochs_and_one_that_has_them_get_only_the_end_behind_each_other(
    spoken: Spoken, turn: RandomTurn, data: st.DataObject
) -> None:
    whole = encoded(spoken, turn.frames)
    late = encoded(spoken, turn.frames[data.draw(st.sampled_from(adoptions(turn))) :])
    spoken.accept(late)
    for reader, other in ((whole, late), (late, whole)):
        place = data.draw(st.integers(0, len(reader) - 1))
        after = reader[place].number
        assert lacking(reader, after) == reader[place + 1 :]
        assert all(output.last for output in lacking(other, after))
        assert other[-1] in lacking(other, after)


@promise("what another protocol's client gets of a turn is the same at every engine, live and replayed")
@settings(with_time, max_examples=settings().max_examples)
@given(
    turn=random_turns().filter(lambda turn: any(not is_over(turn, place) for place in adoptions(turn))), data=st.data()
)
def test_a_response_has_nothing_twice_and_all_of_it_when_the_engine_dies_before_the_newest_events_are_stored(
    turn: RandomTurn, data: st.DataObject
) -> None:
    spoken = PROTOCOLS["Responses"]
    adopted = data.draw(st.sampled_from([place for place in adoptions(turn) if not is_over(turn, place)]))
    stored = data.draw(st.integers(max(0, adopted - 3), adopted))
    seen = encoded(spoken, turn.frames[:adopted])
    rest = lacking(encoded(spoken, turn.frames[:stored] + turn.frames[adopted:]), seen[-1].number)
    assert rest[-1].last
    if not all(output.last for output in rest):
        check_items([msgspec.json.decode(each.data.partition(b"data: ")[2]) for each in [*seen, *rest]])


def check_items(events: Sequence[dict[str, Any]]) -> None:
    """Raises unless each item of a response has begun and ended once, and the texts are those that it has at last."""
    texts: dict[str, str] = {}
    done = [event["item"]["id"] for event in events if event["type"] == "response.output_item.done"]
    assert len(done) == len(set(done))
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["item"]["id"] not in texts
                assert event["output_index"] == len(texts)
                texts[event["item"]["id"]] = ""
            case "response.output_text.delta":
                texts[event["item_id"]] += event["delta"]
            case _:
                pass
    output = events[-1]["response"]["output"]
    assert {item["id"] for item in output} <= texts.keys()
    written = {item["id"]: "".join(part["text"] for part in item["content"]) for item in output if "content" in item}
    assert {key: texts[key] for key in written} == written
