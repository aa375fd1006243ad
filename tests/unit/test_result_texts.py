"""Views: outcomes as users see them and as models read them. Pure."""

import itertools

import msgspec
import pytest

from dialog_engine.model import (
    CallAnswered,
    CallHeld,
    CallProgressed,
    CallQueued,
    CallRunning,
    ToolCall,
    ToolMessage,
    ToolStatus,
    Turn,
    WaitsFor,
)
from dialog_engine.tool_calls.results import steps
from dialog_engine.tool_calls.results.steps import Steps
from dialog_engine.tool_calls.results.texts import STATE_LOST, USER_MAX_CHARS, for_model, tool_message
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import (
    CallState,
    ContentBlock,
    CutBlock,
    LinkBlock,
    MediaBlock,
    TextBlock,
    ToolError,
    ToolOutcome,
)
from tests.marks import promise

S, E, T = CallState, ErrorCode, ToolStatus
ENDS = [state for state in CallState if state.terminal]


def ended(state: CallState, code: ErrorCode | None, message: str = "why") -> ToolOutcome:
    return ToolOutcome(state) if code is None else ToolOutcome.failure(state, code, message)


@pytest.mark.parametrize(
    ("state", "code", "status"),
    [
        (S.SUCCEEDED, None, T.SUCCEEDED),
        (S.FAILED, E.TOOL_EXECUTION_FAILED, T.FAILED),
        (S.FAILED, E.TIMEOUT, T.TIMEOUT),
        (S.FAILED, E.DISABLED, T.REFUSED),
        (S.FAILED, E.OVERLOADED, T.REFUSED),
        (S.FAILED, E.LOST, T.FAILED),
        (S.FAILED, None, T.FAILED),
        (S.UNKNOWN, E.OUTCOME_UNKNOWN, T.UNKNOWN),
        (S.UNKNOWN, E.TIMEOUT, T.UNKNOWN),
        (S.UNKNOWN, None, T.UNKNOWN),
        (S.EXPIRED, None, T.TIMEOUT),
        (S.CANCELLED, E.CANCELLED, T.CANCELLED),
        (S.DEAD, E.UNKNOWN_ERROR, T.FAILED),
        (S.DEAD, E.TIMEOUT, T.TIMEOUT),
    ],
)
def test_the_last_step_shows_the_outcome(state: CallState, code: ErrorCode | None, status: ToolStatus) -> None:
    assert steps.status_of(ended(state, code)) is status


def test_every_outcome_has_a_last_step_and_a_text_for_the_model() -> None:
    for state, code in itertools.product(ENDS, [*ErrorCode, None]):
        outcome = ended(state, code, "")

        assert steps.status_of(outcome) in set(ToolStatus) - {T.PENDING, T.QUEUED, T.RUNNING, T.PROGRESS}, (state, code)
        assert len(for_model(outcome)) > 15, (state, code)
        assert for_model(outcome).startswith("Error ") is (state is not S.SUCCEEDED), (state, code)


def test_only_an_unknown_outcome_tells_the_model_not_to_repeat_the_call() -> None:
    for code in (E.OUTCOME_UNKNOWN, E.TIMEOUT, None):
        warning = "may or may not have taken effect. Do not repeat it on your own: tell the user."
        assert warning in for_model(ended(S.UNKNOWN, code))
    for state in (S.FAILED, S.EXPIRED, S.CANCELLED, S.DEAD):
        assert for_model(ended(state, E.TIMEOUT)) == "Error TIMEOUT: why"


FOR_THE_USER = "The tool returned nothing for you: what it returned is shown to the user."


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([TextBlock("a"), TextBlock("b")], "a\nb"),
        ([TextBlock("a"), MediaBlock("audio/wav", ""), LinkBlock("u:1", "n")],
            "a\n[audio/wav, shown to the user]\n[n](u:1)"),
        ([LinkBlock("f:a", "a", "x/y", "what it is", "A file", 1200)], "[A file](f:a) (x/y, 1,200 bytes): what it is"),
        ([MediaBlock("application/pdf", "AAAA", "f:a")],
            "[application/pdf f:a of 3 bytes: the user can download it, you cannot read it]"),
        ([TextBlock("both"), TextBlock("the user", user_only=True)], "both"),
        ([TextBlock("the user", user_only=True)], FOR_THE_USER),
        ([MediaBlock("image/png", "AAAA", user_only=True)], FOR_THE_USER),
        ([LinkBlock("u:1", "n", user_only=True)], FOR_THE_USER),
        ([TextBlock("head"), CutBlock("0a1b2c3d", 4, 1234, 5678), TextBlock("tail")],
            'head\n[… 1,234 of 5,678 characters left out: call read_result with id "0a1b2c3d" and offset 4 …]\ntail'),
        ([], "The tool returned nothing."),
        ([TextBlock("")], "The tool returned nothing."),
        ([TextBlock(" \n")], "The tool returned nothing."),
    ],
)  # fmt: skip
def test_every_kind_of_content_has_a_text_for_the_model(blocks: list[ContentBlock], text: str) -> None:
    assert for_model(ToolOutcome(S.SUCCEEDED, tuple(blocks))) == text


def test_of_a_failure_the_model_reads_all_the_words() -> None:
    failed = ToolOutcome(S.FAILED, (TextBlock("all of it"),), error=ToolError(E.TOOL_EXECUTION_FAILED, "all…"))
    assert for_model(failed) == "Error TOOL_EXECUTION_FAILED: all of it"


def test_a_success_is_shown_with_its_text_and_where_its_media_can_be_had() -> None:
    content = (TextBlock("a"), MediaBlock("image/png", "AAAA"), LinkBlock("u:1", "n"), MediaBlock("audio/wav", "AAAA"))
    outcome = ToolOutcome(S.SUCCEEDED, content, duration_ms=12)

    details = steps.outcome_details("turn", "call", outcome)

    assert details["durationMs"] == 12
    assert details["result"] == {
        "text": "a",
        "truncated": False,
        "media": [
            {"mimeType": "image/png", "url": "/v1/turns/turn/tool-calls/call/content/1", "size": 3},
            {"mimeType": "audio/wav", "url": "/v1/turns/turn/tool-calls/call/content/3", "size": 3},
        ],
        "links": [{"uri": "u:1", "name": "n"}],
    }
    assert "error" not in details


@pytest.mark.parametrize(
    ("length", "cut_before", "truncated"),
    [(USER_MAX_CHARS, False, False), (USER_MAX_CHARS + 1, False, True), (3, True, True)],
)
def test_a_long_text_is_shown_in_part_and_marked_as_truncated(length: int, cut_before: bool, truncated: bool) -> None:
    outcome = ToolOutcome(S.SUCCEEDED, (TextBlock("x" * length),), truncated=cut_before)

    result = steps.outcome_details("turn", "call", outcome)["result"]

    assert len(result["text"]) == min(length, USER_MAX_CHARS)
    assert result["truncated"] is truncated
    assert len(for_model(outcome)) == length
    assert ("textUrl" in result) is truncated


@pytest.mark.parametrize("content", [(), (TextBlock("gone"),)])
def test_a_failure_is_shown_with_its_error_and_no_result(content: tuple[TextBlock, ...]) -> None:
    failed = ToolOutcome(S.FAILED, content, error=ToolError(E.LOST, "gone"), duration_ms=3)

    assert steps.outcome_details("turn", "call", failed) == {
        "durationMs": 3,
        "error": {"code": "LOST", "message": "gone"},
    }


@pytest.mark.parametrize("state", [S.SUCCEEDED, S.FAILED])
def test_model_and_user_are_told_that_a_server_lost_its_state(state: CallState) -> None:
    outcome = ToolOutcome(state, (TextBlock("a"),), error=ToolError(E.LOST, "b") if state is S.FAILED else None)
    lost = msgspec.structs.replace(outcome, state_lost=True)

    assert for_model(lost) == f"{STATE_LOST}\n{for_model(outcome)}"
    assert steps.outcome_details("turn", "call", lost)["stateLost"] is True
    assert "stateLost" not in steps.outcome_details("turn", "call", outcome)


@pytest.mark.parametrize("more", [TextBlock("and more"), MediaBlock("image/png", "AAAA"), LinkBlock("u:1", "n")])
def test_content_of_a_failure_beyond_its_message_is_shown(more: ContentBlock) -> None:
    failed = ToolOutcome(S.FAILED, (TextBlock("gone"), more), error=ToolError(E.LOST, "gone"))

    assert "result" in steps.outcome_details("turn", "call", failed)


@promise("content for the user only does not go to the model")
def test_content_for_the_user_only_is_shown_to_the_user_and_not_to_the_model() -> None:
    picture = MediaBlock("image/png", "AAAA", user_only=True)
    outcome = ToolOutcome(S.SUCCEEDED, (TextBlock("both"), TextBlock("you", user_only=True), picture))

    assert steps.outcome_details("turn", "call", outcome)["result"]["text"] == "both\nyou"
    assert tool_message(CALL, outcome) == ToolMessage("call_1", "a__b", "both")


def test_arguments_are_shown_as_an_object_and_other_text_unchanged() -> None:
    def shown(text: str) -> dict[str, object]:
        return steps.shown_arguments(ToolCall("1", "id", "a__b", text))

    assert shown('{"a": [1]}') == {"a": [1]}
    assert shown("") == {}
    assert shown("[1") == {"": "[1"}
    assert shown("x" * 1_000_000) == {"": "x" * USER_MAX_CHARS}


CALL = ToolCall("call_1", "id", "a__b", '{"x": 1}')


@promise("a call that waits for Redis or for a worker says so, until it goes on")
def test_each_update_of_a_call_is_a_step_that_says_what_it_waits_for() -> None:
    steps = Steps(Turn("turn", "session", "someone"), 2, {"id": "a"})
    steps.pending(CALL, "Add")
    updates = [
        CallHeld("id", WaitsFor.REDIS),
        CallHeld("id", WaitsFor.WORKER),
        CallQueued("id", 3),
        CallHeld("id", None),
        CallQueued("id"),
        CallRunning("id", 2),
        CallProgressed("id", 0.5, None, None),
        CallProgressed("id", 1, 4, "half"),
        CallHeld("id", WaitsFor.REDIS),
        CallAnswered("id", ended(S.CANCELLED, E.CANCELLED)),
    ]
    shown = [steps.update(CALL, update) for update in updates]
    assert {(step.call, step.server, step.round) for step in shown} == {(CALL, "a", 2)}
    assert [(step.status, step.details) for step in shown] == [
        (T.PENDING, {"waitsFor": "redis"}),
        (T.PENDING, {"waitsFor": "worker"}),
        (T.QUEUED, {"position": 3, "waitsFor": "worker"}),
        (T.QUEUED, {"position": 3}),
        (T.QUEUED, {}),
        (T.RUNNING, {"attempt": 2}),
        (T.PROGRESS, {"progress": 0.5}),
        (T.PROGRESS, {"progress": 1, "total": 4, "message": "half"}),
        (T.PROGRESS, {"progress": 1, "total": 4, "message": "half", "waitsFor": "redis"}),
        (T.CANCELLED, {"durationMs": 0, "error": {"code": "CANCELLED", "message": "why"}}),
    ]


def test_a_call_begins_with_its_arguments_and_a_title_where_there_is_one() -> None:
    steps = Steps(Turn("turn", "session", "someone"), 1, {})

    assert steps.pending(CALL, "Add").details == {"arguments": {"x": 1}, "title": "Add"}
    assert steps.pending(CALL, None).details == {"arguments": {"x": 1}}
    assert steps.pending(CALL, None).server == ""
