"""A turn's events where its log has a hole: rebuilt from what was stored, and never silently less."""

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest

from dialog_engine.chat.archive import CallRecord, MessageRecord, TurnRecord
from dialog_engine.chat.events import START, Batch, Cursor, Frame, LogGoneError, Readers, TurnFrames
from dialog_engine.http import sse
from dialog_engine.http.services import Services
from dialog_engine.http.streams import Streams, StreamTimes
from dialog_engine.model import ToolCall, Turn, TurnFailed, Usage
from tests.marks import promise
from tests.support.fakes.worker import succeeded
from tests.support.transcript import Transcript

CALL = CallRecord(ToolCall("call_1", "id-1", "a__b", "{}"), "a", succeeded("x"))
MESSAGES = [
    MessageRecord(1, "turn", "user", "Hi", False, 0, ()),
    MessageRecord(2, "turn", "assistant", "Let me see.", False, 0, (CALL,)),
    MessageRecord(3, "turn", "assistant", "It is x.", False, 0, ()),
]


def record(status: str = "done", failure: TurnFailed | None = None) -> TurnRecord:
    reason = None if status == "running" else "error" if failure else "stop"
    return TurnRecord("turn", "session", status, reason, Usage(1, 2), 3, failure, 0, 1)


def frame(event_id: str, name: str, **data: Any) -> Frame:
    return Frame(event_id, name, json.dumps(data))


DONE = frame("1-9", "done", reason="stop", turnId="turn")


class Frames(TurnFrames):
    """A log that says what the test wants: each of `lives` is what one reading finds, and how it ends."""

    def __init__(self, *lives: Sequence[Batch | Exception], newest: Frame | None = None) -> None:
        self._lives = [*lives]
        self._newest = newest
        self.read_from: list[Cursor] = []

    async def follow(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Batch]:
        self.read_from.append(after)
        for batch in self._lives.pop(0) if self._lives else ():
            if isinstance(batch, Exception):
                raise batch
            yield batch

    def kept(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Batch]:
        return self.follow(turn_id, after)

    async def newest(self, turn_id: str) -> Frame | None:
        return self._newest

    def running(self, turn_id: str) -> Turn | None:
        return None


class Archive:
    def __init__(self, turn: TurnRecord) -> None:
        self._turn = turn

    async def turn(self, subject: str, turn_id: str) -> TurnRecord:
        return self._turn

    async def turn_messages(self, turn_id: str) -> list[MessageRecord]:
        assert turn_id == self._turn.turn_id
        return MESSAGES


class World:
    def __init__(self, frames: Frames, turn: TurnRecord) -> None:
        self.frames, self.archive = frames, Archive(turn)
        self.readers = Readers()
        self.streams = Streams(15, lambda: None, StreamTimes(end=0.1))


async def collected(batches: AsyncGenerator[Batch]) -> tuple[Transcript, list[str]]:
    transcript, names = Transcript(), list[str]()
    async for batch in batches:
        for each in batch:
            names.append(each.name)
            transcript.take(each.id, each.name, json.loads(each.data))
    return transcript, names


async def of_running(
    frames: Frames, after: Cursor = START, turn: TurnRecord | None = None
) -> tuple[Transcript, list[str]]:
    services = cast("Services", World(frames, turn or record("running")))
    return await collected(sse.of_running(services, "ann", "turn", after))


async def of_ended(
    frames: Frames, after: Cursor = START, failure: TurnFailed | None = None
) -> tuple[Transcript, list[str]]:
    turn = record(failure=failure)
    return await collected(sse.of_ended(cast("Services", World(frames, turn)), turn, after))


@promise("a cursor that is too old gets a reset with a snapshot")
async def test_a_gap_in_the_log_of_a_running_turn_is_filled_with_a_reset() -> None:
    seen = [frame("1-1", "text", delta="a")]
    frames = Frames([seen, LogGoneError()], [[DONE]], newest=frame("1-8", "text", delta="x"))
    transcript, names = await of_running(frames)
    assert names == ["text", "reset", "done"]
    assert frames.read_from == [START, Cursor(1, 8)]
    assert transcript.text == "Let me see.It is x."
    assert transcript.statuses == {"id-1": "succeeded"}
    assert not transcript.repeats


async def test_without_a_log_the_stream_ends_and_the_client_reconnects() -> None:
    assert (await of_running(Frames([LogGoneError()])))[1] == []


@promise("ids never go back: what died with an engine is a reset in the next epoch")
@pytest.mark.parametrize("newest", ["1-36", "1-39"])
async def test_a_log_behind_its_reader_ends_the_stream_without_a_reset(newest: str) -> None:
    """An id below one that the client has seen would be a step back: the next epoch tells what stands."""
    behind = Frames([LogGoneError()], newest=frame(newest, "text", delta="x"))
    assert (await of_running(behind, Cursor(1, 39)))[1] == []


async def test_the_end_that_a_dead_engine_did_not_log_is_rebuilt_from_the_database() -> None:
    frames = Frames([[frame("1-1", "text", delta="a")], ()], [], newest=None)
    transcript, names = await of_running(frames, turn=record("done"))
    assert names == ["text", "reset", "done"]
    assert transcript.text == "Let me see.It is x."


async def test_an_ended_turn_without_a_log_is_rebuilt_for_a_new_reader() -> None:
    transcript, names = await of_ended(Frames([LogGoneError()]))
    assert names == ["control", "message", "control", "control", "message", "done"]
    assert transcript.text == "Let me see.It is x."
    assert transcript.calls["id-1"]["result"]["text"] == "x"


@promise("a cursor that is too old gets a reset with a snapshot")
async def test_a_reader_of_a_part_gets_a_reset_and_then_nothing_more() -> None:
    frames = Frames([LogGoneError()])
    transcript, names = await of_ended(frames, Cursor(1, 4))
    assert names == ["reset", "done"]
    assert transcript.text == "Let me see.It is x."
    assert (await of_ended(frames, Cursor.parse(transcript.last_id)))[1] == []


async def test_a_log_that_lost_its_end_is_completed() -> None:
    last = frame("1-4", "text", delta="a")
    transcript, names = await of_ended(Frames([[last]], newest=last))
    assert names == ["text", "reset", "done"]
    assert transcript.text == "Let me see.It is x."


async def test_rebuilt_events_include_the_error_of_a_failed_turn() -> None:
    _, names = await of_ended(Frames([LogGoneError()]), Cursor(1, 4), TurnFailed("MODEL_ERROR", "no"))
    assert names == ["reset", "error", "done"]
