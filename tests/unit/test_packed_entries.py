"""The entries of a log in memory: packed or not, a reader at any place gets the next ones."""

from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.chat.events import START, Cursor
from dialog_engine.event_log.growing_log import BLOCK, COMPRESSED_BYTES, Entry, PackedEntries, entry_of


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
