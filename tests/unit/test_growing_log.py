"""A log that grows: what a reader takes of it at once is bounded, whatever it missed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.chat.events import START, Cursor, LogGoneError
from dialog_engine.event_log.growing_log import (
    BATCH_CHARACTERS,
    BLOCK,
    COMPRESSED_BYTES,
    Entry,
    GrowingLog,
    PackedEntries,
    batches_of,
    entry_from_fields,
    entry_of,
)


class Log(GrowingLog):
    def add(self, *entries: Entry) -> None:
        self._add(entries)


def entries(count: int, size: int) -> list[Entry]:
    return [Entry(1, number, "reset", "x" * size) for number in range(1, count + 1)]


def test_a_reset_that_an_engine_0_1_0_has_stored_has_the_name_of_today() -> None:
    entry = entry_from_fields(
        Cursor(2, 1), {b"event": b"reset", b"data": b'{"reason":"restart","told":[{"data":"told"}]}'}
    )
    assert entry.data == '{"reason":"restart","events":[{"data":"told"}]}'


@pytest.mark.parametrize("size", [1, 1000])
async def test_a_reader_takes_a_bounded_batch_at_a_time(size: int) -> None:
    log = Log()
    log.add(*entries(300, size))
    log.release_readers()
    batches = [batch async for batch in log.follow(START)]
    assert [frame.id for batch in batches for frame in batch] == [f"1-{number}" for number in range(1, 301)]
    assert max(sum(len(frame.data) for frame in batch) for batch in batches) <= BATCH_CHARACTERS
    assert max(map(len, batches)) <= BLOCK
    large = Entry(1, 2, "reset", "x" * 3 * BATCH_CHARACTERS)
    assert [len(batch) for batch in batches_of([*entries(1, 10), large, Entry(1, 3, "reset", "y")], START)] == [1, 1, 1]


async def test_a_gap_is_noticed_by_readers_before_it_and_a_new_epoch_is_no_gap() -> None:
    entry, begins = Entry(2, 5, "text", "{}"), Entry(2, 1, "reset", "{}")
    assert [seq for seq in range(10) if entry.follows(Cursor(2, seq))] == [4]
    assert [entry.follows(place) for place in (START, Cursor(1, 4), Cursor(3, 1))] == [False] * 3
    places = [Cursor(1, 9), Cursor(2, 4), Cursor(2, 5), Cursor(3, 0)]
    assert [place for place in places if entry.is_after(place)] == places[:2]
    assert begins.follows(Cursor(1, 7))
    assert begins.follows(START)
    goes_on = Entry(2, 1, "control", '{"type":"approval"}')
    assert (goes_on.follows(Cursor(1, 7)), goes_on.follows(START)) == (True, False), "what was before it is missing"


async def test_entries_before_a_gap_come_first() -> None:
    one, two, _, four = entries(4, 1)
    batches = batches_of([one, two, four], START)
    assert [frame.id for frame in next(batches)] == ["1-1", "1-2"]
    with pytest.raises(LogGoneError):
        next(batches)


async def test_an_idle_reader_gets_an_empty_batch() -> None:
    log = Log(idle_seconds=0.01)
    reader = log.follow(Cursor(1, 0))
    assert list(await anext(reader)) == []
    log.add(*entries(1, 1))
    assert [frame.id for frame in await anext(reader)] == ["1-1"]


# --- Entries in memory, packed or not, and in a stream ---


def read(entries: PackedEntries, after: Cursor) -> list[Entry]:
    found: list[Entry] = []
    while some := entries.since(after):
        assert len(some) <= BLOCK
        found += some
        after = some[-1].cursor
    return found


@given(st.lists(st.tuples(st.integers(1, 3 * BLOCK), st.text()), min_size=1, max_size=3), st.data())
def test_every_cursor_gets_exactly_the_entries_after_it(epochs: list[tuple[int, str]], data: st.DataObject) -> None:
    entries = PackedEntries()
    whole: list[Entry] = []
    for epoch, (count, text) in enumerate(epochs, 1):
        whole += [entry_of(epoch, seq, "text", {"delta": f"{text}{seq}"}) for seq in range(1, count + 1)]
    for entry in whole:
        entries.add(entry)
    assert read(entries, START) == whole
    seen = data.draw(st.integers(0, len(whole) - 1))
    assert read(entries, whole[seen].cursor) == whole[seen + 1 :]
    ahead = Cursor(whole[seen].epoch, 1000)
    assert read(entries, ahead) == [entry for entry in whole if entry.is_after(ahead)]


def test_large_events_come_out_as_they_went_in() -> None:
    entries = PackedEntries()
    large = [entry_of(1, seq, "reset", {"reason": "é\n " * COMPRESSED_BYTES}) for seq in range(1, 3 * BLOCK)]
    for entry in large:
        entries.add(entry)
    assert read(entries, START) == large


@given(st.sampled_from(["text", "control", "reset"]), st.text())
def test_an_entry_survives_its_way_through_a_stream(name: str, delta: str) -> None:
    entry = entry_of(2, 7, name, {"delta": delta})
    fields = {b"event": entry.name.encode(), b"data": entry.data.encode()}
    assert entry_from_fields(Cursor(2, 7), fields) == entry
