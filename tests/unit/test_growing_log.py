"""A log that grows: what a reader takes of it at once is bounded, whatever it missed."""

import pytest

from dialog_engine.chat import events
from dialog_engine.chat.events import START, Cursor, LogGoneError
from dialog_engine.event_log.growing_log import (
    BATCH_CHARACTERS,
    BLOCK,
    Entry,
    GrowingLog,
    batches_of,
    entry_from_fields,
)

pytestmark = pytest.mark.anyio


class Log(GrowingLog):
    """A log that a test fills."""

    def add(self, *entries: Entry) -> None:
        self._add(entries)


def entries(count: int, size: int) -> list[Entry]:
    return [Entry(1, number, "reset", "x" * size) for number in range(1, count + 1)]


def test_a_reset_that_an_engine_0_1_0_has_stored_has_the_name_of_today() -> None:
    entry = entry_from_fields(
        Cursor(2, 1), {b"event": b"reset", b"data": b'{"reason":"restart","told":[{"data":"told"}]}'}
    )
    assert entry.data == '{"reason":"restart","events":[{"data":"told"}]}'


async def test_a_reader_takes_a_bounded_batch_at_a_time() -> None:
    log = Log()
    log.add(*entries(300, 1000))
    log.release_readers()
    batches = [batch async for batch in log.follow(START)]
    assert [frame.id for batch in batches for frame in batch] == [f"1-{number}" for number in range(1, 301)]
    assert max(sum(len(frame.data) for frame in batch) for batch in batches) <= BATCH_CHARACTERS
    assert max(map(len, batches)) <= BLOCK


async def test_an_event_that_is_larger_than_a_batch_comes_alone() -> None:
    small, large = entries(1, 10), [Entry(1, 2, "reset", "x" * 3 * BATCH_CHARACTERS)]
    assert [len(batch) for batch in batches_of([*small, *large, Entry(1, 3, "reset", "y")], START)] == [1, 1, 1]


async def test_a_batch_of_small_events_is_bounded() -> None:
    log = Log()
    log.add(*entries(300, 1))
    assert len(await anext(log.follow(START))) == BLOCK


async def test_a_gap_is_noticed_by_readers_before_it_and_a_new_epoch_is_no_gap() -> None:
    entry, begins = Entry(2, 5, "text", "{}"), Entry(2, 1, "reset", "{}")
    assert [seq for seq in range(10) if entry.follows(Cursor(2, seq))] == [4]
    assert [entry.follows(place) for place in (START, Cursor(1, 4), Cursor(3, 1))] == [False] * 3
    assert begins.follows(Cursor(1, 7))
    assert begins.follows(START)


async def test_entries_before_a_gap_come_first() -> None:
    one, two, _, four = entries(4, 1)
    batches = batches_of([one, two, four], START)
    assert [frame.id for frame in next(batches)] == ["1-1", "1-2"]
    with pytest.raises(LogGoneError):
        next(batches)


async def test_an_idle_reader_gets_an_empty_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "IDLE_SECONDS", 0.01)
    log = Log()
    reader = log.follow(Cursor(1, 0))
    assert list(await anext(reader)) == []
    log.add(*entries(1, 1))
    assert [frame.id for frame in await anext(reader)] == ["1-1"]
