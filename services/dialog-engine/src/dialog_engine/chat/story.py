"""What was committed of a turn, as the events that tell it. Pure."""

from collections.abc import Iterable

from dialog_engine.chat.archive import CallRecord, MessageRecord
from dialog_engine.model import (
    AssistantMessage,
    MessageFinished,
    RoundComplete,
    ToolStatus,
    ToolStep,
    TurnEvent,
)
from dialog_engine.tool_calls.views import outcome_details, shown_arguments, status_of


def story(turn_id: str, messages: Iterable[MessageRecord]) -> tuple[TurnEvent, ...]:
    """The finished messages of a turn, each with where its calls stand: their last step, or that they are pending."""
    events: list[TurnEvent] = []
    rounds = 0
    for record in messages:
        if record.turn_id != turn_id or record.role != "assistant":
            continue
        calls = tuple(each.call for each in record.calls)
        message = AssistantMessage(record.content, calls, interrupted=record.interrupted)
        events.append(MessageFinished(record.message_id, message))
        if not calls:
            continue
        rounds += 1
        events += [_step(turn_id, each, rounds) for each in record.calls]
        if all(each.outcome is not None for each in record.calls):
            events.append(RoundComplete(rounds))
    return tuple(events)


def _step(turn_id: str, record: CallRecord, round_number: int) -> ToolStep:
    details = {"arguments": shown_arguments(record.call)}
    if record.outcome is None:
        return ToolStep(ToolStatus.PENDING, record.call, record.server, round_number, details)
    details |= outcome_details(turn_id, record.call.correlation_id, record.outcome)
    return ToolStep(status_of(record.outcome), record.call, record.server, round_number, details)
