"""Sessions as rows: what goes out comes in, whatever the order in which it arrives."""

import msgspec
import pytest

from dialog_engine.chat.copies import CallRow, MessageRow, OutcomeRow, SessionRow, TurnRow, decoded, encoded

TURN = TurnRow(
    turn_id="t1", status="done", rounds=1, reason="stop", input_tokens=1, output_tokens=2, ttft_ms=3,
    error_code=None, error_message=None, traceparent="00-1", created_at=5, finished_at=6,
)  # fmt: skip
BARE = CallRow(correlation_id="c1", tool_call_id="call_1", name="a__b", server="", arguments="{}", created_at=7)
FULL = CallRow(
    correlation_id="c2", tool_call_id="call_2", name="a__b", server="a", arguments='{"x": 1}', created_at=8,
    extra=msgspec.Raw(b'{"sign":"x"}'), request=msgspec.Raw(b'{"tool":"b"}'), outcome=msgspec.Raw(b'{"state":"ok"}'),
    answered_at=9, tool="a__c",
)  # fmt: skip
QUESTION = MessageRow(number=1, turn_id="t1", role="user", content="Hi", created_at=7)
ANSWER = MessageRow(number=2, turn_id="t1", role="assistant", content="", created_at=8, calls=(BARE, FULL))
OUTCOME = OutcomeRow(correlation_id="c1", outcome=msgspec.Raw(b'{"state":"ok"}'), answered_at=10)


def test_every_row_comes_back_as_it_was_and_messages_in_their_order() -> None:
    rows: list[SessionRow] = [OUTCOME, ANSWER, QUESTION, TURN]
    assert [msgspec.to_builtins(_plain(row)) for row in decoded(encoded(rows))] == [
        msgspec.to_builtins(_plain(row)) for row in (TURN, QUESTION, ANSWER, OUTCOME)
    ]


def test_a_newer_row_takes_the_place_of_the_older_and_others_do_not() -> None:
    later = msgspec.structs.replace(TURN, status="failed")
    rows = encoded([TURN, QUESTION, ANSWER, later])
    assert [row.status for row in decoded(rows) if isinstance(row, TurnRow)] == ["failed"]
    assert len(rows) == 3


def test_what_is_no_row_is_passed_over_and_a_row_that_cannot_be_read_is_an_error() -> None:
    assert decoded({"subject": b"ada", "version": b"3"}) == []
    with pytest.raises(msgspec.DecodeError):
        decoded({"turn:t1": b"{}"})


def _plain(row: SessionRow) -> bytes:
    """Raw JSON compares by identity: compare what is written."""
    return msgspec.json.encode(row)
