"""The entries of a turn's log: what Redis holds of one is what a client gets."""

from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.chat.events import Cursor
from dialog_engine.event_log.growing_log import Entry, entry_from_fields, entry_of


@given(st.sampled_from(["text", "control", "reset"]), st.text())
def test_an_entry_survives_its_way_through_a_stream(name: str, delta: str) -> None:
    entry = entry_of(2, 7, name, {"delta": delta})
    fields = {b"event": entry.name.encode(), b"data": entry.data.encode()}
    assert entry_from_fields(Cursor(2, 7), fields) == entry


def test_an_entry_is_new_to_readers_before_it() -> None:
    entry = Entry(2, 5, "text", "{}")
    assert [entry.is_after(place) for place in (Cursor(1, 9), Cursor(2, 4), Cursor(2, 5), Cursor(3, 0))] == [
        True,
        True,
        False,
        False,
    ]
