"""The events of a turn on the wire, held against `docs/protocol.md`; and the draft that follows them."""

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from dialog_engine.chat.events import Cursor, encode
from dialog_engine.chat.outbox import (
    DEFAULT_ROUTES,
    EVENT_TYPES,
    TOOL_CALL_FINISHED,
    TURN_FINISHED,
    ToolCallFinished,
    TurnFinished,
    TurnUsage,
)
from dialog_engine.chat.service import Draft
from dialog_engine.http import described
from dialog_engine.model import (
    AnsweredBy,
    ApprovalStatus,
    ApprovalStep,
    AssistantMessage,
    CallAnswered,
    CallProgressed,
    CallQueued,
    CallRunning,
    ChatEvent,
    Done,
    DoneReason,
    MessageFinished,
    QuestionStatus,
    ReasoningDelta,
    Reset,
    ResetReason,
    ResourceUpdated,
    RoundComplete,
    TextDelta,
    ToolCall,
    ToolStatus,
    Turn,
    TurnEvent,
    TurnFailed,
    TurnStarted,
    Usage,
    WaitingForUser,
    Withdrawn,
)
from dialog_engine.tool_calls.approvals.rules import question_for
from dialog_engine.tool_calls.questions.values import Answer, AskedRound, Asking
from dialog_engine.tool_calls.results.steps import Steps
from dialog_engine.tool_calls.values import Asked, Decision
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolOutcome
from plugins_contract.questions import InputRequired, QuestionKind, ServerQuestion
from tests.marks import promise
from tests.support.fakes.worker import succeeded, tool

PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()

CALL = ToolCall("call_1", "id", "a__b", '{"x": 1}')
QUESTION = question_for(tool("a__b", title="Title", approval=ApprovalPolicy.ALWAYS), {"x": 1}, 0, 60_000)
STEPS = Steps(Turn("turn", "session", "someone"), 1, {"id": "a"})


def ended(state: CallState, code: ErrorCode) -> TurnEvent:
    return STEPS.finished(CALL, ToolOutcome.failure(state, code, "why"))


EVENTS: list[TurnEvent] = [
    TurnStarted("turn", "session"),
    AnsweredBy("openai:gpt", 12),
    TextDelta("a"),
    ReasoningDelta("a"),
    MessageFinished(7, AssistantMessage("a")),
    MessageFinished(7, AssistantMessage("a", (CALL,), "hm", interrupted=True)),
    WaitingForUser(2),
    WaitingForUser(1, ("c:1:1", "c:1:2"), usage=Usage(5, 2, False, 2, 3, 1)),
    ResourceUpdated("notes", "notes://a"),
    RoundComplete(1),
    Reset("why"),
    Reset("why", (MessageFinished(7, AssistantMessage("a")),)),
    TurnFailed("CODE", "why"),
    Withdrawn("turn"),
    Done("turn", DoneReason.STOP, Usage(1, 2), 3),
    Done("turn", DoneReason.CANCELLED, Usage(1, 2, estimated=True), None),
]
TOOL_STEPS: list[TurnEvent] = [
    STEPS.pending(CALL, "Title"),
    STEPS.update(CALL, CallQueued("id", 2)),
    STEPS.update(CALL, CallRunning("id", 1)),
    STEPS.update(CALL, CallProgressed("id", 1, 2, "half")),
    STEPS.update(CALL, CallAnswered("id", succeeded("x"))),
    ended(CallState.FAILED, ErrorCode.LOST),
    ended(CallState.EXPIRED, ErrorCode.TIMEOUT),
    ended(CallState.CANCELLED, ErrorCode.CANCELLED),
    ended(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN),
    ended(CallState.FAILED, ErrorCode.DISABLED),
]
APPROVAL_STEPS = [
    STEPS.asked(Asked(CALL, QUESTION)),
    STEPS.decided(CALL, Decision(status=ApprovalStatus.APPROVED, at=1)),
    STEPS.decided(CALL, Decision(status=ApprovalStatus.EDITED, at=1, arguments={})),
    STEPS.decided(CALL, Decision(status=ApprovalStatus.REFUSED, at=1, reason="no")),
    STEPS.decided(CALL, Decision(status=ApprovalStatus.EXPIRED, at=1)),
]
_ASKED = InputRequired(
    (
        ServerQuestion("a", QuestionKind.FORM, "When?", form={"type": "object", "properties": {}}),
        ServerQuestion("b", QuestionKind.URL, "Where?", url="https://example.com/x"),
    ),
    "state",
)
_ROUND = AskedRound(CALL, 1, Asking("a", "b", _ASKED, "{}", 0, 60_000), {2: Answer(QuestionStatus.DECLINED, 1)})
QUESTION_STEPS: list[TurnEvent] = [*_ROUND.steps(1)]
COMMON = {"type", "status", "toolName", "server", "toolCallId", "correlationId", "round"}


def table(header: str) -> list[list[str]]:
    """The rows of the table of the protocol page with this header."""
    lines = PROTOCOL.split(header)[1].split("\n\n")[0].strip().splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def documented(name: str, data: dict[str, Any]) -> tuple[set[str], set[str]]:
    """The fields that the page gives this event: those it always has, and those it may have."""
    for row in table("| event | data | meaning |"):
        fields = row[1]
        types = re.findall(r'"type": "(\w+)"', fields)
        if row[0] == f"`{name}`" and types in ([], [data.get("type")]):
            optional = set(re.findall(r'"(\w+)"\?', fields))
            top = re.sub(r"(?<=.)\{[^{}]*\}", "", fields.strip("`"))
            names = set(re.findall(r'"(\w+)"(?=[,:?}\s])', re.sub(r': "\w+"', ":", top)))
            return names - optional, optional
    raise AssertionError(f"{name} {data} is not in the protocol")


def test_every_kind_of_event_has_an_example_here() -> None:
    assert {type(event) for event in [*EVENTS, *TOOL_STEPS, *APPROVAL_STEPS, *QUESTION_STEPS]} == set(
        get_args(TurnEvent)
    )


def test_the_description_of_the_api_names_every_event() -> None:
    schema: Any = described.EVENTS[200]["content"]["text/event-stream"]["schema"]
    sent = {encode(event)[0] for event in [*EVENTS, *TOOL_STEPS, *APPROVAL_STEPS, *QUESTION_STEPS]}
    assert set(schema["properties"]["event"]["enum"]) == sent


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_has_the_fields_that_the_protocol_page_gives_it(event: TurnEvent) -> None:
    name, data = encode(event)
    always, sometimes = documented(name, data)

    assert always <= set(data) <= always | sometimes


@pytest.mark.parametrize("event", [*TOOL_STEPS, *APPROVAL_STEPS], ids=lambda event: event.status)  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType]
def test_a_step_of_a_call_and_of_an_approval_has_the_fields_that_the_protocol_page_gives_it(event: TurnEvent) -> None:
    _, data = encode(event)
    header = "| approval | adds |" if isinstance(event, ApprovalStep) else "| status | adds |"
    [adds] = [row[1] for row in table(header) if f"`{data['status']}`" in row[0]]
    sent = set(data) - COMMON
    fields = adds.split(":")[0] if isinstance(event, ApprovalStep) else adds
    optional = set(re.findall(r"`(\w+)`\?", fields))
    named = {re.split(r"[\s{]", code)[0] for code in re.findall(r"`(\w[^`]*)`", fields) if "." not in code}
    named -= {policy.value for policy in ApprovalPolicy}

    assert named - optional <= sent <= named
    assert set(data) >= COMMON


@promise("a reset names its cause")
def test_every_status_and_every_reason_is_on_the_protocol_page() -> None:
    statuses = PROTOCOL.split("The steps of a tool call: `")[1].split("`")[0]

    assert set(re.findall(r"\w+", statuses)) == {status.value for status in ToolStatus}
    of_clients = {ApprovalStatus.ANSWERED}  # stored, and shown as the end of the call
    assert {event.status for event in APPROVAL_STEPS} == set(ApprovalStatus) - of_clients
    assert {event.status for event in TOOL_STEPS} == set(ToolStatus)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    reasons = PROTOCOL.split("`reason`: ")[1].split("|")[0]
    assert set(re.findall(r"`(\w+)`", reasons)) == {reason.value for reason in DoneReason}
    assert {row[0].strip("`") for row in table("| `reason` of a `reset` | cause |")} == {*ResetReason}


# --- The draft ------------------------------------------------------------------------------------------------------


def drafted(*events: ChatEvent) -> Draft:
    draft = Draft()
    for event in events:
        draft.follow(event)
    return draft


def test_a_draft_is_the_text_since_the_last_finished_message() -> None:
    draft = drafted(
        TextDelta("a"), ReasoningDelta("r"), MessageFinished(1, AssistantMessage("a")), TextDelta("b"), TextDelta("c")
    )

    assert draft.message(interrupted=False) == AssistantMessage("bc")
    assert draft.message(interrupted=True) == AssistantMessage("bc", interrupted=True)


@pytest.mark.parametrize("events", [(), (TextDelta(" \n"),)])
def test_an_interrupted_draft_without_text_is_no_message(events: tuple[ChatEvent, ...]) -> None:
    assert drafted(*events).message(interrupted=True) is None
    assert drafted(*events).message(interrupted=False) is not None
    reasoned = drafted(*events, ReasoningDelta("hm")).message(interrupted=True)
    assert reasoned is not None, "what was shown is kept"
    assert reasoned.reasoning == "hm"


# --- Facts and cursors ----------------------------------------------------------------------------------------------


def test_every_kind_of_event_in_the_outbox_has_a_stream_of_its_own() -> None:
    assert set(DEFAULT_ROUTES) == EVENT_TYPES
    assert len(set(DEFAULT_ROUTES.values())) == len(EVENT_TYPES)


def test_facts_name_themselves_and_their_version_and_carry_no_arguments_and_no_results() -> None:
    of: dict[str, Any] = {"turn_id": "t", "session_id": "s", "subject": "someone", "at": 2}
    call: dict[str, Any] = {"correlation_id": "c", "tool_name": "a__b", "state": "failed", "error_code": "LOST"}

    tool_fact = msgspec.to_builtins(ToolCallFinished(**of, **call, duration_ms=1, attempts=1))
    turn_fact = msgspec.to_builtins(TurnFinished(**of, reason="stop", usage=TurnUsage(1, 2)))
    assert (tool_fact["eventType"], tool_fact["eventVersion"]) == (TOOL_CALL_FINISHED, 1)
    assert (turn_fact["eventType"], turn_fact["eventVersion"]) == (TURN_FINISHED, 1)
    assert not {"arguments", "result", "content", "outcome"} & set(tool_fact)
    assert turn_fact["usage"] == {"inputTokens": 1, "outputTokens": 2}


@pytest.mark.parametrize("text", ["", "1", "1-", "-1", "1-2-3", "a-b", " 1-2", "1-2\n", "1" * 16 + "-1", "1-\u0662"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an event id"):
        Cursor.parse(text)


def test_a_cursor_is_read_as_it_is_written_and_they_are_in_the_order_of_lives_and_then_of_events() -> None:
    assert [str(Cursor.parse(text)) for text in ("1-2", "0-0", "12-345678")] == ["1-2", "0-0", "12-345678"]
    assert Cursor(1, 99) < Cursor(2, 1) < Cursor(2, 2)
