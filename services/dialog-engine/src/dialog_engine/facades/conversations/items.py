"""The items of a conversation: what was asked, said and called in its turns, with the ids that responses have. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dialog_engine.chat.archive import CallRecord, MessageRecord, TurnRecord
from dialog_engine.facades.responses.answer import stored_response
from dialog_engine.facades.responses.encoder import Form
from dialog_engine.facades.responses.ids import FUNCTION_CALL, approval_id, item_id
from dialog_engine.facades.responses.input_items import answer_item, said_items
from dialog_engine.model import ApprovalStatus

Json = dict[str, Any]


def items_of_turn(record: TurnRecord, messages: Sequence[MessageRecord], *, is_written: bool) -> list[Json]:
    """What was added before a turn, what its request has asked, and what it has come to by its end, or until it waits
    for its user: an item does not change any more once it is listed, except that a call gets its end. Of one that
    `is_written` there is the question only."""
    question = messages[0]
    items = said_items(record.turn_id, question.content, question.brought)
    if is_written:
        return items
    kept: Mapping[str, Any] = question.brought.response or {}
    form = Form(record.turn_id, kept.get("said", {}), "", kept.get("listed", ()))
    output = stored_response(form, record, (), messages, decided=True)["output"]
    return [*items, *_with_answers(record.turn_id, output, messages)]


def _with_answers(turn_id: str, output: Sequence[Json], messages: Sequence[MessageRecord]) -> Iterable[Json]:
    """The items, with the answer behind each request for approval, and each call of the client, that has one."""
    answered = {_asked(turn_id, call): call for message in messages for call in message.calls if _has_answer(call)}
    for item in output:
        yield item
        if item["id"] in answered:
            yield answer_item(turn_id, answered[item["id"]])


def _has_answer(call: CallRecord) -> bool:
    status = call.approval.decision.status if call.approval and call.approval.decision else None
    return status is ApprovalStatus.ANSWERED if call.by_client else status not in (None, ApprovalStatus.EXPIRED)


def _asked(turn_id: str, call: CallRecord) -> str:
    correlation_id = call.call.correlation_id
    if call.by_client:
        return item_id(FUNCTION_CALL, turn_id, correlation_id)
    return approval_id(turn_id, correlation_id, call.approval.question.hash if call.approval else "")
