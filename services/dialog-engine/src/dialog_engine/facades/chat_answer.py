"""The answer of a turn as one completion, for clients that read no stream. Pure."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from dialog_engine.chat.archive import MessageRecord, TurnRecord
from dialog_engine.chat.events import usage_view
from dialog_engine.facades.chat_chunks import FINISH, CallSteps, Form, Steps, completion_id, created, usage_of
from dialog_engine.http import views
from dialog_engine.http.plain import WaitsFor
from dialog_engine.http.problems import ProblemError


def completion(
    form: Form, record: TurnRecord, waits_for: WaitsFor, messages: Sequence[MessageRecord]
) -> dict[str, Any]:
    """A turn that has ended, or waits for its user, which the text then says.

    Raises:
        ProblemError: the turn has failed, or was stopped.
    """
    said = [each for each in messages if each.role == "assistant"]
    if record.failure or record.status not in ("done", "running"):
        raise _failed(record)
    texts = [each.content for each in said if each.content]
    texts += [f"{each['toolName']} waits for you: decide at {form.page or each['answerUrl']}" for each in waits_for]
    message: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(texts)}
    if form.steps != Steps.OFF and (steps := _steps(form, record, said)):
        message["reasoning_content"] = steps
    finish = FINISH.get(record.reason or "", "stop")
    return {
        "id": completion_id(record.turn_id),
        "object": "chat.completion",
        "created": created(record.turn_id),
        "model": form.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": usage_of({"usage": usage_view(record.usage)}),
    }


def _steps(form: Form, record: TurnRecord, said: Sequence[MessageRecord]) -> str:
    steps = CallSteps(form, record.turn_id)
    parts: list[str] = []
    for message in said:
        parts.append(message.reasoning and f"{message.reasoning}\n")
        for call in views.message(message)["toolCalls"]:
            parts.append(steps.said({**call, "type": "tool", "status": "pending"}))
            parts.append(steps.said({**call, "type": "tool"}))
    return "".join(parts)


def _failed(record: TurnRecord) -> ProblemError:
    headers = {"x-should-retry": "false"}
    if record.failure:
        code, message = record.failure.code, record.failure.message
        return ProblemError(HTTPStatus.BAD_GATEWAY, code, message, headers=headers, turnId=record.turn_id)
    return ProblemError(
        HTTPStatus.CONFLICT, "TURN_CANCELLED", "the answer was stopped", headers=headers, turnId=record.turn_id
    )
