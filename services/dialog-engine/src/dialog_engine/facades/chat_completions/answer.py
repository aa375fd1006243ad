"""The answer of a turn as one completion, for clients that read no stream. Pure."""

from collections.abc import Container, Sequence
from http import HTTPStatus
from typing import Any

from dialog_engine.chat.archive import MessageRecord, TurnRecord
from dialog_engine.chat.events import usage_view
from dialog_engine.facades.chat_completions.chunks import (
    FINISH,
    CallSteps,
    Form,
    Steps,
    client_call,
    completion_id,
)
from dialog_engine.facades.openai.objects import created
from dialog_engine.facades.usage import of_completion
from dialog_engine.http import views
from dialog_engine.http.plain import WaitsFor
from dialog_engine.http.problems import ProblemError
from dialog_engine.model import CLIENT_SERVER


def completion(
    form: Form,
    answered: Container[str],
    record: TurnRecord,
    waits_for: WaitsFor,
    messages: Sequence[MessageRecord],
) -> dict[str, Any]:
    """A turn that has ended, or waits for its user, which the text then says, or for its client, whose calls it has.
    With calls whose results were `answered`, by correlation id, what follows on these.

    Raises:
        ProblemError: the turn has failed, or was stopped.
    """
    said = _after(answered, [each for each in messages if each.role == "assistant"])
    if record.failure or record.status not in ("done", "running"):
        raise _failed(record)
    texts = [each.content for each in said if each.content]
    of_people = [each for each in waits_for if each["kind"] != "clientTool"]
    texts += [f"{each['toolName']} waits for you: decide at {form.page or each['answerUrl']}" for each in of_people]
    message: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(texts)}
    if form.steps != Steps.OFF and (steps := _steps(form, record, said)):
        message["reasoning_content"] = steps
    finish = FINISH.get(record.reason or "", "stop")
    if waits_for and not of_people:
        open_calls = {each["correlationId"] for each in waits_for}
        calls = [call for each in said for call in views.message(each)["toolCalls"]]
        message["tool_calls"] = [client_call(call) for call in calls if call["correlationId"] in open_calls]
        finish = "tool_calls"
    return {
        "id": completion_id(record.turn_id),
        "object": "chat.completion",
        "created": created(record.turn_id),
        "model": form.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": of_completion(usage_view(record.usage)),
    }


def _after(answered: Container[str], said: Sequence[MessageRecord]) -> Sequence[MessageRecord]:
    """The messages behind the last one with such a call."""
    places = [place for place, each in enumerate(said, 1) if any(c.call.correlation_id in answered for c in each.calls)]
    return said[max(places, default=0) :]


def _steps(form: Form, record: TurnRecord, said: Sequence[MessageRecord]) -> str:
    steps = CallSteps(form, record.turn_id)
    parts: list[str] = []
    for message in said:
        parts.append(message.reasoning and f"{message.reasoning}\n")
        for call in (each for each in views.message(message)["toolCalls"] if each["server"] != CLIENT_SERVER):
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
