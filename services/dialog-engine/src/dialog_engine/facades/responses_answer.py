"""One response as one document: what its encoder makes of the events of its turn until now."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from dialog_engine.chat.archive import CallRecord, MessageRecord, TurnRecord
from dialog_engine.chat.events import Batch, Cursor, Frame, encode
from dialog_engine.chat.replay import replay_ended, replay_parked
from dialog_engine.facades.responses_encoder import Form, ResponseEncoder
from dialog_engine.facades.responses_ids import approval_id, item_id
from dialog_engine.http.plain import RUNNING, WaitsFor
from dialog_engine.model import ApprovalStatus, Brought, ClientMessage, MediaOfUser, TurnEvent

_APPROVED = (ApprovalStatus.APPROVED, ApprovalStatus.EDITED)


def stored_response(
    form: Form, record: TurnRecord, waits_for: WaitsFor, messages: Sequence[MessageRecord]
) -> dict[str, Any]:
    """A response of a turn that has ended, or waits for its user."""
    encoder = ResponseEncoder(form)
    events = replay_parked(record, messages) if record.status == RUNNING else replay_ended(record, messages)
    for frame in _frames(events):
        encoder.feed(frame)
    return encoder.document


async def response_until(form: Form, batches: AsyncGenerator[Batch], newest: Cursor) -> dict[str, Any]:
    """A response as it is at this place of the log of its turn, which may run. `batches` begin at the first event."""
    encoder = ResponseEncoder(form)
    async with aclosing(batches):
        async for batch in batches:
            for frame in batch:
                encoder.feed(frame)
            if not batch or encoder.is_over or Cursor.parse(batch[-1].id) >= newest:
                break
    return encoder.document


def input_items(turn_id: str, question: str, brought: Brought) -> list[dict[str, Any]]:
    """What a request has sent, as items: the messages before its question, as its client has said them, and that."""
    said = [*brought.said, ClientMessage("user", question, brought.media)]
    return [_message(item_id("msg", turn_id, f"in{n}"), each) for n, each in enumerate(said) if each.role != "tool"]


def _message(message_id: str, said: ClientMessage) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "input_text", "text": said.content}
    if said.role == "assistant":
        part = {"type": "output_text", "text": said.content, "annotations": []}
    parts = [part, *(_image(image) for image in said.media if isinstance(image, MediaOfUser))]
    return {"id": message_id, "type": "message", "role": said.role, "content": parts, "status": "completed"}


def answer_item(turn_id: str, call: CallRecord) -> dict[str, Any]:
    """What the user has said to the request for approval of a call."""
    call_id, approval = call.call.correlation_id, call.approval
    decision = approval.decision if approval else None
    return {
        "id": item_id("mcpa", turn_id, call_id),
        "type": "mcp_approval_response",
        "approval_request_id": approval_id(turn_id, call_id, approval.question.hash if approval else ""),
        "approve": decision is not None and decision.status in _APPROVED,
        "reason": decision.reason if decision else None,
    }


def _image(image: MediaOfUser) -> dict[str, Any]:
    url = f"/v1/turns/{image.turn_id}/images/{image.number}"
    return {"type": "input_image", "detail": "auto", "image_url": url}


def _frames(events: Iterable[TurnEvent]) -> Iterable[Frame]:
    for number, event in enumerate(events, 1):
        name, data = encode(event)
        yield Frame(str(Cursor(1, number)), name, msgspec.json.encode(data).decode())
