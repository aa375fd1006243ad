"""Rebuilds the events of a turn from what is stored of it. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from dialog_engine.chat.archive import CallRecord, MessageRecord, TurnRecord
from dialog_engine.model import (
    ApprovalStatus,
    ApprovalStep,
    AssistantMessage,
    Done,
    DoneReason,
    MessageFinished,
    QuestionStatus,
    QuestionStep,
    ReasoningDelta,
    Reset,
    RoundComplete,
    ToolStatus,
    ToolStep,
    Turn,
    TurnEvent,
    TurnStarted,
    WaitingForUser,
)
from dialog_engine.tool_calls.results.steps import (
    Steps,
    client_details,
    named_details,
    outcome_details,
    shown_arguments,
    status_of,
)
from dialog_engine.tool_calls.values import Approval, Asked
from plugins_contract.questions import call_of_round


def replay(turn_id: str, messages: Iterable[MessageRecord], *, decided: bool = False) -> tuple[TurnEvent, ...]:
    """The committed messages of a turn, each after its reasoning and before the state of its calls: the last step of a
    finished call, and for any other that it is pending. One that needs or needed approval has that too, and one of the
    client that it is pending. What a decided one was asked with is there with `decided` only."""
    events: list[TurnEvent] = []
    rounds = 0
    for record in messages:
        if record.turn_id != turn_id or record.role != "assistant":
            continue
        calls = tuple(each.call for each in record.calls)
        message = AssistantMessage(record.content, calls, interrupted=record.interrupted)
        if record.reasoning:
            events.append(ReasoningDelta(record.reasoning))
        events.append(MessageFinished(record.message_id, message))
        if not calls:
            continue
        rounds += 1
        events += [step for each in record.calls for step in _of_client(each, rounds)]
        for each in record.calls:
            events += _steps(turn_id, each, rounds, decided)
        if all(each.outcome is not None for each in record.calls):
            events.append(RoundComplete(rounds))
    return tuple(events)


def replay_ended(
    record: TurnRecord, messages: Iterable[MessageRecord], *, reset: str = "", decided: bool = False
) -> list[TurnEvent]:
    """Every event of a turn that has ended. With `reset`, a ResetReason, they replace what a client has seen."""
    committed = replay(record.turn_id, messages, decided=decided)
    events: list[TurnEvent] = (
        [Reset(reset, committed)] if reset else [TurnStarted(record.turn_id, record.session_id), *committed]
    )
    if record.failure is not None:
        events.append(record.failure)
    reason = DoneReason(record.reason or DoneReason.ERROR)
    return [*events, Done(record.turn_id, reason, record.usage, record.ttft_ms, record.model, record.tool_calls)]


def replay_parked(record: TurnRecord, messages: Sequence[MessageRecord], *, decided: bool = False) -> list[TurnEvent]:
    """Every event of a turn that is parked."""
    calls = [call for message in messages for call in message.calls if call.waits or call.open_questions]
    waits, questions = sum(call.waits for call in calls), tuple(each for call in calls for each in call.open_questions)
    by_client = sum(call.by_client for call in calls)
    started = TurnStarted(record.turn_id, record.session_id)
    ids = tuple(each.call.correlation_id for each in calls)
    hashes = {
        c.call.correlation_id: c.approval.question.hash for c in calls if c.approval and c.waits and not c.by_client
    }
    waiting = WaitingForUser(waits - by_client, questions, ids, by_client, record.usage, hashes)
    return [started, *replay(record.turn_id, messages, decided=decided), waiting]


def answers(asked: Collection[str], events: Iterable[TurnEvent]) -> Iterable[ApprovalStep | QuestionStep | ToolStep]:
    """Those of the events that say how people have answered these calls and questions, which their ids name."""
    calls = {call_of_round(each) for each in asked}
    for event in events:
        match event:
            case ApprovalStep(status, call) if status is not ApprovalStatus.ASKED and call.correlation_id in asked:
                yield event
            case QuestionStep(status, details=said) if status is not QuestionStatus.ASKED:
                if said["questionId"] in asked:
                    yield event
            case ToolStep(status, call) if status.final and call.correlation_id in calls:
                yield event
            case _:
                pass


def _of_client(record: CallRecord, round_number: int) -> list[ToolStep]:
    """The first step of a call that the client runs, which says so. These steps come before the others of a round, so
    that all such calls are known before the first of them ends."""
    if not (record.by_client and record.approval):
        return []
    details = {"arguments": shown_arguments(record.call)} | client_details(record.approval.question)
    return [ToolStep(ToolStatus.PENDING, record.call, record.server, round_number, details)]


def _steps(
    turn_id: str, record: CallRecord, round_number: int, decided: bool
) -> list[ToolStep | ApprovalStep | QuestionStep]:
    call, approval = record.call, None if record.by_client else record.approval
    edited = approval.edited if approval else None
    details: dict[str, Any] = {"arguments": shown_arguments(call) if edited is None else edited}
    if record.title:
        details["title"] = record.title
    pending = ToolStep(ToolStatus.PENDING, call, record.server, round_number, details)
    asked: list[ToolStep | ApprovalStep | QuestionStep] = (
        [] if approval is None else [pending, _approval_step(turn_id, record, approval, round_number)]
    )
    if approval and approval.decision and decided:
        asked.insert(1, _approval_step(turn_id, record, replace(approval, decision=None), round_number))
    if record.rounds:
        asked = asked or [pending]
        asked += [step for each in record.rounds for step in each.steps(round_number)]
    if record.outcome is None:
        return asked or ([] if record.by_client else [pending])
    details |= outcome_details(turn_id, call.correlation_id, record.outcome)
    return [*asked, ToolStep(status_of(record.outcome), call, record.server, round_number, details)]


def _approval_step(turn_id: str, record: CallRecord, approval: Approval, round_number: int) -> ApprovalStep | ToolStep:
    steps = Steps(Turn(turn_id, "", ""), round_number, {record.call.correlation_id: record.server})
    if approval.decision is None:
        return steps.asked(Asked(record.call, approval.question))
    decided = steps.decided(record.call, approval.decision)
    about = {"hash": approval.question.hash, **named_details(approval.question)}
    return replace(decided, details={**decided.details, **about})
