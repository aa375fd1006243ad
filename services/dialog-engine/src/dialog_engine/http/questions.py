"""The route by which a person answers a question of an MCP server."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from dialog_engine.http import described
from dialog_engine.http.bodies import Body
from dialog_engine.http.repetition import Answering, answering
from dialog_engine.http.requests import Engine, Sender, about_found, large_answer
from dialog_engine.model import QuestionStatus, Turn
from dialog_engine.tool_calls.questions.pending import Given

_STATUS = {
    "accept": QuestionStatus.ANSWERED,
    "decline": QuestionStatus.DECLINED,
    "cancel": QuestionStatus.CANCELLED,
}

router = APIRouter(prefix="/v1", tags=["turns"])


class AnswerRequest(Body):
    """A person's answer to a question of a server."""

    action: Annotated[
        Literal["accept", "decline", "cancel"],
        Field(description="Send the form, or agree to open the address; refuse; dismiss without a choice."),
    ]
    content: Annotated[
        dict[str, str | bool | int | float | list[str]] | None,
        Field(description="The fields of the form, to accept one. Those that are left out have their defaults."),
    ] = None


@router.post(
    "/turns/{turn_id}/questions/{question_id}",
    responses=described.BODY | described.NOT_FOUND | described.CONFLICT,
    dependencies=[Depends(large_answer)],
)
async def answer(
    turn_id: str,
    question_id: str,
    body: AnswerRequest,
    engine: Engine,
    sender: Sender,
    sent: Answering,
    request: Request,
) -> dict[str, Any]:
    """Answer a question that an MCP server asks in the middle of a call."""
    content = body.content if body.action == "accept" else None
    person = Turn(turn_id, "", sender.subject, roles=sender.roles)
    async with answering(sent, engine, sender.subject, turn_id) as answer_key:
        given = Given(_STATUS[body.action], content, sender.key_id, answer_key)
        asked, place = await engine.questions.answer(person, question_id, given)
    await about_found(request, engine, sender.subject, turn_id)
    ids = {"turnId": turn_id, "toolCallId": asked.call.tool_call_id, "correlationId": asked.call.correlation_id}
    return ids | {"status": asked.status(place)} | asked.details(place)
