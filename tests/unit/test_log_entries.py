"""The entries of a turn's log: whatever was merged, a reader gets exactly the rest."""

import json
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.chat.frames import START, Cursor, Frame
from dialog_engine.model import Done, DoneReason, ReasoningDelta, Reset, TextDelta, TurnEvent, Usage
from dialog_engine.streams.growing_log import batches_of
from dialog_engine.streams.log_entries import Entry, entry_from_fields, entry_of, merged, run_of

EVENTS: st.SearchStrategy[list[TurnEvent]] = st.lists(
    st.one_of(
        st.text(max_size=3).map(TextDelta),
        st.text(max_size=3).map(ReasoningDelta),
        st.text(max_size=3).map(Reset),
    ),
    max_size=20,
)


def numbered(events: Iterable[TurnEvent]) -> list[Entry]:
    return [entry_of(1, number, event) for number, event in enumerate(events, 1)]


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
    place = Cursor(1, after)
    rest = [entry.frame(place) for entry in entries if entry.is_after(place)]

    together = [entry.frame(place) for entry in merged(entries) if entry.is_after(place)]
    assert told(together) == told(rest)
    assert [frame.id for frame in together[-1:]] == [frame.id for frame in rest[-1:]]


@given(EVENTS)
def test_an_entry_survives_its_way_through_a_stream(events: list[TurnEvent]) -> None:
    for entry in merged(numbered(events)):
        name, text = entry.field
        fields = {b"event": entry.name.encode(), name.encode(): text.encode()}
        assert entry_from_fields(entry.cursor, fields) == entry


@given(EVENTS)
def test_merging_again_changes_nothing(events: list[TurnEvent]) -> None:
    once = merged(numbered(events))
    assert merged(once) == once


@given(st.lists(st.text(max_size=3), min_size=2, max_size=20), st.data())
def test_a_run_in_two_parts_is_the_same_run(pieces: list[str], data: st.DataObject) -> None:
    run = run_of(3, 40, "text", pieces)
    head, rest = run.parted(data.draw(st.integers(run.first, run.last - 1)))
    assert (*head.pieces, *rest.pieces) == tuple(pieces)
    assert [each.last - each.first + 1 for each in (head, rest)] == [len(head.pieces), len(rest.pieces)]
    assert merged([head, rest]) == [run]


def test_what_is_there_twice_is_not_joined_and_is_read_once() -> None:
    # So they are in Redis when an append came there, its answer did not, and the log has grown until the next one.
    stored, again = run_of(1, 2, "text", ["a", "b"]), run_of(1, 3, "text", ["a", "b", "c"])
    assert merged([stored, again]) == [stored, again]
    assert [(frame.id, frame.data) for [*batch] in batches_of([stored, again], START) for frame in batch] == [
        ("1-2", '{"delta":"ab"}'),
        ("1-3", '{"delta":"c"}'),
    ]


def test_runs_are_no_longer_than_wanted() -> None:
    entries = numbered([TextDelta("abc")] * 5)
    assert [entry.last for entry in merged(entries, 6)] == [2, 4, 5]
    assert merged(merged(entries, 6), 6) == merged(entries, 6)


def test_only_neighbours_of_one_kind_are_merged() -> None:
    done = Done("turn", DoneReason.STOP, Usage(), None)
    events = [TextDelta("a"), TextDelta("b"), ReasoningDelta("c"), TextDelta("d"), done]
    assert [(entry.first, entry.last, entry.name, entry.pieces) for entry in merged(numbered(events))] == [
        (1, 2, "text", ("a", "b")),
        (3, 3, "reasoning", ("c",)),
        (4, 4, "text", ("d",)),
        (5, 5, "done", ()),
    ]


def test_a_hole_is_seen_by_who_comes_from_before_it_and_a_new_epoch_is_none() -> None:
    run = Entry(2, 5, 8, "text", "abcd", (1, 2, 3))
    begins = Entry(2, 1, 1, "reset", "{}")
    assert [seq for seq in range(10) if run.goes_on_from(Cursor(2, seq))] == [4, 5, 6, 7, 8, 9]
    assert [run.goes_on_from(place) for place in (START, Cursor(1, 7), Cursor(3, 1))] == [False] * 3
    assert begins.goes_on_from(Cursor(1, 7))
    assert begins.goes_on_from(START)
