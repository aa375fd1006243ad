"""The log of a running turn: one id per entry, given once, and what Redis has lost can be stored again."""

import asyncio
import json

import pytest

from dialog_engine.chat.events import START, Frame
from dialog_engine.event_log.turn_log import COALESCE_SECONDS, LiveLog, LogTimes
from dialog_engine.model import Done, DoneReason, ReasoningDelta, Reset, TextDelta, Turn, TurnEvent, Usage
from tests.marks import promise

DONE = Done("turn", DoneReason.STOP, Usage(), None)


TURN = Turn("turn", "session", "alice")


def new_log() -> LiveLog:
    return LiveLog(TURN, lambda _: None)


def said(log: LiveLog) -> list[tuple[int, str]]:
    """The number and the text, or the name, of each entry."""
    return [(entry.seq, json.loads(entry.data).get("delta", f"<{entry.name}>")) for entry in log.since(START)]


async def until(log: LiveLog, count: int) -> None:
    """Until the log has so many entries, as a reader sees it."""
    frames: list[Frame] = []
    async with asyncio.timeout(5):
        async for batch in log.follow(START):
            frames += batch
            if len(frames) >= count:
                return


@promise("one id per entry, given after deltas are coalesced, and the first delta goes at once")
async def test_the_first_delta_goes_at_once_and_those_that_follow_are_one_entry() -> None:
    log = new_log()
    log.append(TextDelta("a"))
    assert said(log) == [(1, "a")]
    begun = asyncio.get_running_loop().time()
    for text in "bcd":
        log.append(TextDelta(text))
    assert said(log) == [(1, "a")]
    await until(log, 2)
    assert said(log) == [(1, "a"), (2, "bcd")]
    assert asyncio.get_running_loop().time() - begun >= COALESCE_SECONDS * 0.9


async def test_deltas_become_one_entry_per_interval_and_wait_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    log = new_log()
    log.append(TextDelta("a"))
    log.append(TextDelta("b"))
    await until(log, 2)
    # The entry before was made now, so the next delta is not the first one after silence.
    log.append(TextDelta("c"))
    assert said(log) == [(1, "a"), (2, "b")]
    await until(log, 3)
    silence_ends = loop.time() + 2 * COALESCE_SECONDS
    monkeypatch.setattr(loop, "time", lambda: silence_ends)
    log.append(TextDelta("d"))
    assert said(log) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


@promise("one id per entry, given after deltas are coalesced, and the first delta goes at once")
async def test_any_other_event_comes_at_once_and_after_the_deltas_that_wait() -> None:
    events: list[TurnEvent] = [
        TextDelta("a"),
        TextDelta("b"),
        TextDelta("c"),
        ReasoningDelta("d"),
        ReasoningDelta("e"),
        Reset(""),
        ReasoningDelta("f"),
        ReasoningDelta("g"),
        DONE,
    ]
    log = new_log()
    for event in events:
        log.append(event)
    expected = ["a", "bc", "d", "e", "<reset>", "f", "g", "<done>"]
    assert said(log) == [*enumerate(expected, 1)]


@pytest.mark.parametrize("end", ["release_readers", "give_up", "close"])
async def test_waiting_deltas_are_shown_before_readers_are_released(end: str) -> None:
    log = LiveLog(TURN, lambda _: None, LogTimes(close=0.0))
    log.append(TextDelta("a"))
    log.append(TextDelta("b"))
    if end == "close":
        await log.close()
    else:
        getattr(log, end)()
    frames = [frame.id async for batch in log.follow(START) for frame in batch]
    assert frames == ["1-1", "1-2"]
