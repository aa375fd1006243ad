"""TurnLogs and TurnFrames: the logs in Redis, at the engine that writes them and at another one."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import pytest

from dialog_engine.chat.events import START, Batch, Cursor, Frame, LogGoneError, TurnFrames
from dialog_engine.model import Done, DoneReason, ReasoningDelta, TextDelta, Turn, TurnEvent, TurnStarted, Usage
from plugins_contract.messages import new_id
from tests.contract.ports.conftest import Logs
from tests.marks import promise
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

Story = list[tuple[str, str]]


def new_turn(epoch: int = 1) -> Turn:
    return Turn(new_id(), "session", "someone", epoch)


def events(turn: Turn) -> list[TurnEvent]:
    return [
        TurnStarted(turn.turn_id, turn.session_id),
        ReasoningDelta("hm"),
        TextDelta("It "),
        TextDelta("is "),
        TextDelta("noon."),
        Done(turn.turn_id, DoneReason.STOP, Usage(), 1),
    ]


def contents(frames: list[Frame]) -> Story:
    """The names of the events with their text: pieces of one text may come in one frame."""
    story: Story = []
    for frame in frames:
        delta = json.loads(frame.data).get("delta", "")
        if delta and story and story[-1][0] == frame.name:
            story[-1] = (frame.name, story[-1][1] + delta)
        else:
            story.append((frame.name, delta))
    return story


def ids(frames: list[Frame]) -> list[Cursor]:
    return [Cursor.parse(frame.id) for frame in frames]


WHOLE: Story = [("control", ""), ("reasoning", "hm"), ("text", "It is noon."), ("done", "")]


async def read(frames: TurnFrames, turn: Turn, after: Cursor = START) -> list[Frame]:
    async with asyncio.timeout(10):
        return [frame async for batch in frames.follow(turn.turn_id, after) for frame in batch]


async def written(logs: Logs, turn: Turn) -> None:
    log = logs.writer.open(turn)
    for event in events(turn):
        log.append(event)
    await log.close()


async def test_a_reader_gets_events_as_they_come(logs: Logs) -> None:
    turn = new_turn()
    log = logs.writer.open(turn)
    first, *rest = events(turn)
    log.append(first)

    async with aclosing(logs.here.follow(turn.turn_id)) as frames, asyncio.timeout(10):
        [start] = await anext(frames)
        assert start.name == "control"
        waiting: asyncio.Task[Batch] = asyncio.create_task(_next(frames))
        await asyncio.sleep(0)
        assert not waiting.done()
        log.append(rest[0])
        assert [frame.id for frame in await waiting] == ["1-2"]
    await log.close()


async def _next(frames: AsyncGenerator[Batch]) -> Batch:
    return await anext(frames)


async def test_a_reader_elsewhere_gets_the_end_though_it_came_before_it(logs: Logs) -> None:
    turn = new_turn()
    log = logs.writer.open(turn)
    *most, last = events(turn)
    for event in most:
        log.append(event)

    async def read_if_it_is_there() -> list[Frame]:
        with suppress(LogGoneError):
            return await read(logs.elsewhere, turn)
        return []

    reading = asyncio.create_task(wait_until(read_if_it_is_there))
    await asyncio.sleep(0)
    log.append(last)
    await log.close()

    assert contents(await reading) == WHOLE


@promise("one id per entry, given after deltas are coalesced, and the first delta goes at once")
async def test_here_and_elsewhere_the_ids_are_the_same_and_after_each_comes_exactly_what_was_missed(logs: Logs) -> None:
    turn = new_turn()
    await written(logs, turn)
    story = await read(logs.here, turn)

    assert contents(story) == WHOLE
    assert ids(story) == sorted(set(ids(story)))
    assert await read(logs.elsewhere, turn) == story
    for frames in (logs.here, logs.elsewhere):
        for seen, frame in enumerate(story, 1):
            assert await read(frames, turn, Cursor.parse(frame.id)) == story[seen:]


async def test_several_readers_have_each_their_own_place(logs: Logs) -> None:
    turn = new_turn()
    log = logs.writer.open(turn)
    readers = [asyncio.create_task(read(logs.here, turn)) for _ in range(3)]
    for event in events(turn):
        log.append(event)
        await asyncio.sleep(0)
    await log.close()

    assert [contents(await reader) for reader in readers] == [WHOLE] * 3


async def test_a_later_life_goes_on_with_ids_that_are_higher(logs: Logs) -> None:
    turn = new_turn()
    log = logs.writer.open(turn)
    log.append(TextDelta("cut"))
    await log.close()

    later = Turn(turn.turn_id, turn.session_id, "someone", 2)
    await written(logs, later)

    for frames in (logs.here, logs.elsewhere):
        assert contents(await read(frames, turn)) == [("text", "cut"), *WHOLE]
        assert contents(await read(frames, turn, Cursor(1, 1))) == WHOLE
        story = await read(frames, turn)
        assert ids(story) == sorted(set(ids(story)))
        assert [cursor.epoch for cursor in ids(story)] == [1] + [2] * (len(story) - 1)


async def test_existing_events_are_read_without_waiting(logs: Logs) -> None:
    turn = new_turn()
    log = logs.writer.open(turn)
    *most, last = events(turn)
    for event in most:
        log.append(event)

    async with asyncio.timeout(10):
        assert contents([f async for batch in logs.here.kept(turn.turn_id) for f in batch])[0] == WHOLE[0]
        log.append(last)
        await log.close()
        for frames in (logs.here, logs.elsewhere):
            assert contents([f async for batch in frames.kept(turn.turn_id) for f in batch]) == WHOLE
            newest = await frames.newest(turn.turn_id)
            assert newest
            assert newest.name == "done"
            assert [f async for batch in frames.kept(turn.turn_id, Cursor.parse(newest.id)) for f in batch] == []


async def test_an_unknown_turn_has_no_log(logs: Logs) -> None:
    for frames in (logs.here, logs.elsewhere):
        with pytest.raises(LogGoneError):
            await anext(frames.kept("no-turn"))
        assert await frames.newest("no-turn") is None
