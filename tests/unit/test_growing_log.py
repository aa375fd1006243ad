"""A log that grows: what a reader takes of it at once is bounded, whatever it missed."""

import pytest

from dialog_engine.chat import frames
from dialog_engine.chat.frames import START, Cursor, Frame, LogGoneError
from dialog_engine.model import ReasoningDelta, TextDelta
from dialog_engine.streams.growing_log import BATCH_CHARACTERS, ENTRIES_AT_ONCE, GrowingLog, batches_of
from dialog_engine.streams.log_entries import Entry, entry_of

pytestmark = pytest.mark.anyio


class Log(GrowingLog):
    """A log that a test fills."""

    def add(self, *entries: Entry) -> None:
        self._add(entries)


def entries(count: int, size: int) -> list[Entry]:
    return [Entry(1, number, number, "reset", "x" * size) for number in range(1, count + 1)]


async def test_a_reader_takes_a_little_at_a_time() -> None:
    log = Log()
    log.add(*entries(300, 1000))
    log.let_go()
    batches = [batch async for batch in log.follow(START)]
    assert [frame.id for batch in batches for frame in batch] == [f"1-{number}" for number in range(1, 301)]
    assert max(sum(len(frame.data) for frame in batch) for batch in batches) <= BATCH_CHARACTERS
    assert max(map(len, batches)) <= ENTRIES_AT_ONCE


async def test_an_event_that_is_larger_comes_alone() -> None:
    small, large = entries(1, 10), [Entry(1, 2, 2, "reset", "x" * 3 * BATCH_CHARACTERS)]
    assert [len(batch) for batch in batches_of([*small, *large, Entry(1, 3, 3, "reset", "y")], START)] == [1, 1, 1]


async def test_many_small_events_are_not_held_on_to_at_once() -> None:
    log = Log()
    log.add(*entries(300, 1))
    assert len(await anext(log.follow(START))) == ENTRIES_AT_ONCE


async def test_who_is_behind_gets_the_text_that_has_piled_up_as_one_event() -> None:
    log = Log()
    log.add(entry_of(1, 1, TextDelta("a")))
    reader, late = log.follow(START), log.follow(Cursor(1, 1))
    assert await anext(reader) == [Frame("1-1", "text", '{"delta":"a"}')]

    log.add(*(entry_of(1, 2 + at, TextDelta(text)) for at, text in enumerate("bcd")))
    assert await anext(reader) == [Frame("1-4", "text", '{"delta":"bcd"}')]
    assert await anext(late) == [Frame("1-4", "text", '{"delta":"bcd"}')]

    log.add(entry_of(1, 5, TextDelta("e")))
    assert await anext(reader) == [Frame("1-5", "text", '{"delta":"e"}')]
    log.add(entry_of(1, 6, TextDelta("f")), entry_of(1, 7, ReasoningDelta("g")), entry_of(1, 9, ReasoningDelta("i")))
    assert [frame.id for frame in await anext(reader)] == ["1-6", "1-7"]
    with pytest.raises(LogGoneError):
        await anext(reader)


async def test_what_stands_before_a_hole_is_told_first() -> None:
    one, two, _, four = entries(4, 1)
    batches = batches_of([one, two, four], START)
    assert [frame.id for frame in next(batches)] == ["1-1", "1-2"]
    with pytest.raises(LogGoneError):
        next(batches)


async def test_a_reader_hears_that_there_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "IDLE_SECONDS", 0.01)
    log = Log()
    reader = log.follow(Cursor(1, 0))
    assert list(await anext(reader)) == []
    log.add(*entries(1, 1))
    assert [frame.id for frame in await anext(reader)] == ["1-1"]
