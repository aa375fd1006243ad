"""The entries of a turn's log: whatever was merged, a reader gets exactly the rest."""

import json
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.chat.frames import Frame
from dialog_engine.model import Done, DoneReason, ReasoningDelta, Reset, TextDelta, TurnEvent, Usage
from dialog_engine.streams.log_entries import Entry, entry_from_fields, entry_of, merged

EVENTS: st.SearchStrategy[list[TurnEvent]] = st.lists(
    st.one_of(
        st.text(max_size=3).map(TextDelta),
        st.text(max_size=3).map(ReasoningDelta),
        st.text(max_size=3).map(Reset),
    ),
    max_size=20,
)


def numbered(events: Iterable[TurnEvent]) -> list[Entry]:
    return [entry_of(number, event) for number, event in enumerate(events, 1)]


def told(frames: Iterable[Frame]) -> list[tuple[str, str]]:
    """What a reader made of frames: neighbouring deltas in one."""
    result: list[tuple[str, str]] = []
    for frame in frames:
        data = json.loads(frame.data)
        if "delta" not in data:
            result.append((frame.name, frame.data))
        elif result and result[-1][0] == frame.name:
            result[-1] = (frame.name, result[-1][1] + data["delta"])
        else:
            result.append((frame.name, data["delta"]))
    return result


@given(EVENTS, st.data())
def test_after_any_cursor_a_reader_of_merged_entries_gets_what_a_reader_of_single_ones_gets(
    events: list[TurnEvent], data: st.DataObject
) -> None:
    entries = numbered(events)
    after = data.draw(st.integers(0, len(entries)))
    rest = [entry.frame(1, after) for entry in entries if entry.last > after]

    together = [entry.frame(1, after) for entry in merged(entries) if entry.last > after]
    assert told(together) == told(rest)
    assert [frame.id for frame in together[-1:]] == [frame.id for frame in rest[-1:]]


@given(EVENTS)
def test_an_entry_survives_its_way_through_a_stream(events: list[TurnEvent]) -> None:
    for entry in merged(numbered(events)):
        fields = {name.encode(): value.encode() for name, value in entry.fields.items()}
        assert entry_from_fields(entry.last, fields) == entry


@given(EVENTS)
def test_merging_again_changes_nothing(events: list[TurnEvent]) -> None:
    once = merged(numbered(events))
    assert merged(once) == once


def test_only_neighbours_of_one_kind_are_merged() -> None:
    done = Done("turn", DoneReason.STOP, Usage(), None)
    events = [TextDelta("a"), TextDelta("b"), ReasoningDelta("c"), TextDelta("d"), done]
    assert [(entry.first, entry.last, entry.name, entry.pieces) for entry in merged(numbered(events))] == [
        (1, 2, "text", ("a", "b")),
        (3, 3, "reasoning", ("c",)),
        (4, 4, "text", ("d",)),
        (5, 5, "done", ()),
    ]
