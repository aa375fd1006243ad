"""Turns as the JSON of the protocol: those that run or have ended, those that wait, and what other branches leave."""

from collections.abc import Sequence
from typing import Any

from dialog_engine.chat.archive import MadeCall, TurnRecord
from dialog_engine.chat.events import usage_view
from dialog_engine.chat.waiting_messages import WaitingMessage
from dialog_engine.model import ToolStatus
from dialog_engine.tool_calls.questions.values import FoundRound
from dialog_engine.tool_calls.results.steps import question_details, rfc3339, status_of
from dialog_engine.tool_calls.values import PendingApproval
from plugins_contract.choice import ToolChoice

MAX_PENDING = 100
"""How many approvals, and how many messages, `GET /v1/me/pending` lists."""
SHOWN_OF_WAITING = 1_000
"""Characters of a message that it shows."""


def tool_choice(tools: ToolChoice | None) -> dict[str, Any] | None:
    """What a message or a session has chosen; None for all tools."""
    if tools is None:
        return None
    lists = {"servers": tools.servers, "allow": tools.allow, "deny": tools.deny or None}
    return {name: names for name, names in lists.items() if names is not None}


def turn(record: TurnRecord) -> dict[str, Any]:
    """A turn."""
    data: dict[str, Any] = {
        "turnId": record.turn_id,
        "sessionId": record.session_id,
        "parentTurnId": record.parent_turn_id,
        "status": record.status,
        "reason": record.reason,
        "usage": usage_view(record.usage),
        "toolCalls": record.tool_calls,
        "ttftMs": record.ttft_ms,
        "model": record.model,
        "createdAt": rfc3339(record.created_at),
        "finishedAt": None if record.finished_at is None else rfc3339(record.finished_at),
    }
    if record.parked:
        data["parked"] = True
    if record.left_out:
        data["messagesLeftOut"] = record.left_out
    if record.failure is not None:
        data["error"] = {"code": record.failure.code, "message": record.failure.message}
    return data


def effects(calls: Sequence[MadeCall], limit: int) -> dict[str, Any]:
    """The first `limit` of these calls, and whether there are more."""
    return {"calls": [_effect(each) for each in calls[:limit]], "more": len(calls) > limit}


def _effect(made: MadeCall) -> dict[str, Any]:
    return {
        "turnId": made.turn_id,
        "toolCallId": made.call.tool_call_id,
        "correlationId": made.call.correlation_id,
        "toolName": made.call.tool_name,
        "server": made.server,
        "executionClass": made.execution_class or None,
        "status": status_of(made.outcome) if made.outcome else ToolStatus.PENDING,
    }


def waiting(message: WaitingMessage) -> dict[str, Any]:
    """A message that waits to become a turn, or was withdrawn."""
    turn = message.turn
    return {
        "turnId": turn.turn_id,
        "sessionId": turn.session_id,
        "status": message.status,
        "held": message.held or None,
        "message": message.text,
        "model": turn.choice.model or None,
        "toolMode": turn.choice.tool_mode or None,
        "tools": tool_choice(turn.choice.tools),
        "createdAt": rfc3339(message.created_at),
    }


def _asked(waits: PendingApproval) -> dict[str, Any]:
    return {
        "sessionId": waits.session_id,
        "turnId": waits.turn_id,
        "toolCallId": waits.asked.call.tool_call_id,
        "correlationId": waits.asked.call.correlation_id,
        "toolName": waits.asked.call.tool_name,
        "server": waits.asked.question.server,
    }


def _client_call(waits: PendingApproval) -> dict[str, Any]:
    question, correlation_id = waits.asked.question, waits.asked.call.correlation_id
    answer_url = f"/v1/turns/{waits.turn_id}/tool-calls/{correlation_id}/result"
    of_call = {"arguments": question.arguments, "expiresAt": rfc3339(question.expires_at), "answerUrl": answer_url}
    return _asked(waits) | of_call


def pending(
    approvals: Sequence[PendingApproval],
    messages: Sequence[WaitingMessage],
    questions: Sequence[FoundRound],
    client_calls: Sequence[PendingApproval],
) -> dict[str, Any]:
    """What waits for a subject. Of a long message only the beginning is shown."""
    shown = [waiting(each) for each in messages]
    return {
        "approvals": [_asked(each) | question_details(each.asked.question) for each in approvals],
        "clientCalls": [_client_call(each) for each in client_calls],
        "questions": [
            {
                "sessionId": found.session_id,
                "turnId": found.turn_id,
                "toolCallId": found.asked.call.tool_call_id,
                "correlationId": found.asked.call.correlation_id,
                "toolName": found.asked.call.tool_name,
                "server": found.asked.asking.server,
                **found.asked.details(place),
            }
            for found in questions
            for place in range(1, 1 + len(found.asked.asking.asked.questions))
            if place not in found.asked.answers
        ],
        "messages": [each | {"message": each["message"][:SHOWN_OF_WAITING]} for each in shown],
    }
