"""Routes of the tool calls of a turn: decide on one, and read the content of its result."""

import json
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import AfterValidator, Field

from dialog_engine.errors import ArgumentsRefusedError
from dialog_engine.http import described, turn_views, views
from dialog_engine.http.bodies import Body, unicode_text
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.repetition import Answering, answering
from dialog_engine.http.requests import Engine, Sender, Subject, about_found, large_answer
from dialog_engine.model import storable_json
from dialog_engine.tool_calls.approvals.rules import MAX_REASON, read_edited
from dialog_engine.tool_calls.results.steps import decision_details
from dialog_engine.tool_calls.values import Approve, Given, Refuse

MAX_EFFECTS = 100
"""How many calls are named at once."""

router = APIRouter(prefix="/v1", tags=["turns"])


class DecisionRequest(Body):
    """A person's decision about a tool call."""

    decision: Literal["approve", "refuse"]
    hash: Annotated[str | None, Field(description="The hash of the `asked` event; required to approve.")] = None
    arguments: Annotated[
        dict[str, Any] | None, Field(description="Arguments to run the tool with instead of the model's.")
    ] = None
    reason: Annotated[
        str, Field(max_length=MAX_REASON, description="Why not; the model gets it."), AfterValidator(unicode_text)
    ] = ""

    def given(self) -> Given:
        """The decision as a value of the core.

        Raises:
            ArgumentsRefusedError: the arguments are not valid JSON.
            ProblemError: a field is missing, or does not fit the decision.
        """
        if self.decision == "refuse":
            if self.arguments is not None:
                raise _misplaced("arguments", "arguments are for approving; leave them out to refuse")
            return Refuse(self.reason.strip())
        if not self.hash:
            raise _misplaced("hash", "hash is required to approve: it is in the event that asks")
        if self.reason:
            raise _misplaced("reason", "reason is for refusing; leave it out to approve")
        return Approve(self.hash, None if self.arguments is None else _checked(self.arguments))


@router.post(
    "/turns/{turn_id}/approvals/{tool_call_id}",
    responses=described.BODY | described.NOT_FOUND | described.CONFLICT,
    dependencies=[Depends(large_answer)],
)
async def decide(
    turn_id: str,
    tool_call_id: str,
    body: DecisionRequest,
    engine: Engine,
    sender: Sender,
    sent: Answering,
    request: Request,
) -> dict[str, Any]:
    """Approve a tool call, as it is or with other arguments, or refuse it."""
    given = body.given()
    await about_found(request, engine, sender.subject, turn_id)
    async with answering(sent, engine, sender.subject, turn_id) as answer_key:
        given = replace(given, key_id=sender.key_id, answer_key=answer_key)
        record, decision = await engine.approvals.decide(sender.subject, turn_id, tool_call_id, given, sender.roles)
    call = record.call
    ids = {"turnId": turn_id, "toolCallId": call.tool_call_id, "correlationId": call.correlation_id}
    return ids | {"status": decision.status} | decision_details(decision)


@router.get("/turns/{turn_id}/effects", responses=described.NOT_FOUND, dependencies=[Depends(large_answer)])
async def effects(turn_id: str, engine: Engine, subject: Subject) -> dict[str, Any]:
    """What another answer to this turn's message would leave standing: the calls of the turn, and of those after it on
    the path that is shown, that have taken effect or may have, oldest first. Calls that may be repeated are not in it.
    """
    return turn_views.effects(await engine.archive.made_calls(subject, turn_id, MAX_EFFECTS + 1), MAX_EFFECTS)


@router.get(
    "/turns/{turn_id}/tool-calls/{correlation_id}/content/{number}",
    response_class=Response,
    responses=described.content(HTTPStatus.OK, "*/*") | described.NOT_FOUND,
    dependencies=[Depends(large_answer)],
)
async def content(turn_id: str, correlation_id: str, number: int, engine: Engine, subject: Subject) -> Response:
    """An image or a sound of a tool's result."""
    block = await engine.archive.media(subject, turn_id, correlation_id, number)
    media = views.media(block) if block else None
    if media is None:
        detail = f"there is no content {number} in the result of call {correlation_id}"
        raise ProblemError(HTTPStatus.NOT_FOUND, "CONTENT_NOT_FOUND", detail, field="number")
    return media


@router.get(
    "/turns/{turn_id}/images/{number}",
    response_class=Response,
    responses=described.content(HTTPStatus.OK, "*/*") | described.NOT_FOUND,
    dependencies=[Depends(large_answer)],
)
async def image(turn_id: str, number: int, engine: Engine, subject: Subject) -> Response:
    """An image that came with the message of a turn."""
    await engine.archive.turn(subject, turn_id)
    block = await engine.archive.image(turn_id, number)
    media = views.media(block) if block else None
    if media is None:
        detail = f"there is no image {number} in the message of turn {turn_id}"
        raise ProblemError(HTTPStatus.NOT_FOUND, "CONTENT_NOT_FOUND", detail, field="number")
    return media


@router.get(
    "/turns/{turn_id}/tool-calls/{correlation_id}/text",
    response_class=PlainTextResponse,
    responses=described.NOT_FOUND,
    dependencies=[Depends(large_answer)],
)
async def text(turn_id: str, correlation_id: str, engine: Engine, subject: Subject) -> Response:
    """The whole text of a tool's result; where a part of it is not stored any more, the text says so."""
    outcome = await engine.archive.outcome(subject, turn_id, correlation_id)
    if outcome is None:
        detail = f"call {correlation_id} has no result"
        raise ProblemError(HTTPStatus.NOT_FOUND, "CONTENT_NOT_FOUND", detail, field="correlation_id")
    return views.result_text(outcome, await engine.archive.whole(subject, turn_id, correlation_id))


def _misplaced(field: str, why: str) -> ProblemError:
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", why, field=field)


def _checked(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, if they keep the limits of a model's. Python's parser takes more than JSON, such as NaN."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError) as error:
        raise ArgumentsRefusedError("arguments", f"they are not valid JSON: {error}") from None
    if storable_json(text) != text:
        raise ArgumentsRefusedError("arguments", "they must not contain the character U+0000: remove it")
    return read_edited(text)
