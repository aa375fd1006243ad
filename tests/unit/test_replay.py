"""What was committed of a turn, as events."""

from dialog_engine.chat.archive import CallRecord, MessageRecord
from dialog_engine.chat.replay import replay
from dialog_engine.model import AssistantMessage, MessageFinished, RoundComplete, ToolCall, ToolStatus, ToolStep
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolOutcome
from tests.support.fakes import succeeded

CALLS = [ToolCall(f"call_{n}", f"id-{n}", "a__b", '{"x": 1}') for n in range(3)]


def asked(message_id: int, *calls: CallRecord) -> MessageRecord:
    return MessageRecord(message_id, "turn", "assistant", "Let me see.", False, 0, calls)


def test_every_call_is_replayed_with_its_arguments_and_state() -> None:
    lost = ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, "who knows")
    records = [
        CallRecord(CALLS[0], "a", succeeded("x")),
        CallRecord(CALLS[1], "a", lost),
        CallRecord(CALLS[2], "a", None),
    ]
    message, *steps = replay("turn", [MessageRecord(1, "turn", "user", "Hi", False, 0, ()), asked(2, *records)])

    assert message == MessageFinished(2, AssistantMessage("Let me see.", tuple(CALLS)))
    assert all(isinstance(step, ToolStep) and step.details["arguments"] == {"x": 1} for step in steps)
    assert [step.status for step in steps if isinstance(step, ToolStep)] == [
        ToolStatus.SUCCEEDED,
        ToolStatus.UNKNOWN,
        ToolStatus.PENDING,
    ]


def test_rounds_are_numbered_and_complete_ones_are_marked() -> None:
    first, second = CallRecord(CALLS[0], "a", succeeded("x")), CallRecord(CALLS[1], "a", None)
    replayed = replay("turn", [asked(2, first), asked(3, second)])
    assert [event.round for event in replayed if isinstance(event, ToolStep)] == [1, 2]
    assert [event for event in replayed if isinstance(event, RoundComplete)] == [RoundComplete(1)]
    assert replay("another", [asked(2)]) == ()
