"""What the request of a response has sent, as items of the Responses API. Pure."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import msgspec

from dialog_engine.chat.archive import CallRecord, MessageRecord
from dialog_engine.facades.responses.ids import FUNCTION_CALL, FUNCTION_OUTPUT, approval_id, item_id
from dialog_engine.model import ApprovalStatus, Brought, ClientCall, ClientMessage, MediaOfUser
from dialog_engine.tool_calls.results.steps import outcome_details

_APPROVED = (ApprovalStatus.APPROVED, ApprovalStatus.EDITED)

Json = dict[str, Any]


def input_items(turn_id: str, question: str, brought: Brought) -> list[Json]:
    """The messages before a question, as the client has said them, and that."""
    said = tuple(each for each in brought.said if not each.id)
    return said_items(turn_id, question, msgspec.structs.replace(brought, said=said))


def said_items(turn_id: str, question: str, brought: Brought) -> list[Json]:
    """The same, behind what was added to the conversation before."""
    own, items = count(), list[Json]()
    for each in (*brought.said, ClientMessage("user", question, brought.media)):
        items += [message_item(each.id, each)] if each.id else _said(turn_id, f"in{next(own)}", each)
    return items


def message_item(message_id: str, said: ClientMessage) -> Json:
    """A message of a client as an item."""
    parts = [_text("output_text" if said.role == "assistant" else "input_text", said.content), *_images(said)]
    return {"id": message_id, "type": "message", "role": said.role, "content": parts, "status": "completed"}


def answer_item(turn_id: str, call: CallRecord) -> Json:
    """The user's answer to the request for approval of a call, or the result of one that the client has run."""
    return _output(turn_id, call) if call.by_client else _approval(turn_id, call)


def answer_items(turn_id: str, answered: str, messages: Sequence[MessageRecord]) -> list[Json]:
    """The answer to this call of a turn; if the client has run it, with the other results of the same request."""
    calls = [call for each in messages for call in each.calls if call.approval and call.approval.decision]
    named = [call for call in calls if call.call.correlation_id == answered]
    if not any(call.by_client for call in named):
        return [_approval(turn_id, call) for call in named]
    times = [_answered_at(call) for call in named]
    return [_output(turn_id, call) for call in calls if call.by_client and _answered_at(call) in times]


def _answered_at(call: CallRecord) -> int:
    decision = call.approval.decision if call.approval else None
    return decision.at if decision else 0


def _said(turn_id: str, place: str, said: ClientMessage) -> Iterator[Json]:
    if said.role == "tool":
        ids = {"id": item_id(FUNCTION_OUTPUT, turn_id, place), "call_id": said.call_id}
        output = [_text("input_text", said.content), *_images(said)] if said.media else said.content
        yield {**ids, "type": "function_call_output", "output": output, "status": "completed"}
        return
    if said.content or said.media or not said.calls:
        yield message_item(item_id("msg", turn_id, place), said)
    for number, call in enumerate(said.calls):
        yield _call(item_id(FUNCTION_CALL, turn_id, f"{place}.{number}"), call)


def _call(call_item_id: str, call: ClientCall) -> Json:
    shown = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
    return {"id": call_item_id, "type": "function_call", **shown, "status": "completed"}


def _text(kind: str, text: str) -> Json:
    return {"type": kind, "text": text} | ({"annotations": []} if kind == "output_text" else {})


def _images(said: ClientMessage) -> Iterator[Json]:
    """The images, without an address before their turn has begun."""
    for image in said.media:
        yield _image(f"/v1/turns/{image.turn_id}/images/{image.number}" if isinstance(image, MediaOfUser) else None)


def _image(url: str | None) -> Json:
    return {"type": "input_image", "detail": "auto", "image_url": url}


def _approval(turn_id: str, call: CallRecord) -> Json:
    call_id, approval = call.call.correlation_id, call.approval
    decision = approval.decision if approval else None
    return {
        "id": item_id("mcpa", turn_id, call_id),
        "type": "mcp_approval_response",
        "approval_request_id": approval_id(turn_id, call_id, approval.question.hash if approval else ""),
        "approve": decision is not None and decision.status in _APPROVED,
        "reason": decision.reason if decision else None,
    }


def _output(turn_id: str, call: CallRecord) -> Json:
    call_id, outcome = call.call.correlation_id, call.outcome
    result = outcome_details(turn_id, call_id, outcome).get("result") if outcome else None
    output: Any = result["text"] if result else ""
    if result and result["media"]:
        images = [_image(each["url"]) for each in result["media"]]
        output = [*([_text("input_text", output)] if output else []), *images]
    ids = {"id": item_id(FUNCTION_OUTPUT, turn_id, call_id), "call_id": call_id}
    return {**ids, "type": "function_call_output", "output": output, "status": "completed"}
