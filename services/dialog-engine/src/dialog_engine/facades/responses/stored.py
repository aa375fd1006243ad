"""The routes of stored responses: read one, follow it, stop it, forget it."""

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from dialog_engine.chat.archive import TurnRecord
from dialog_engine.chat.waiting_messages import WaitingMessage
from dialog_engine.facades.responses.encoder import ResponseEncoder
from dialog_engine.facades.responses.input_items import answer_items, input_items
from dialog_engine.facades.responses.kept import document_of, kept_response, refused
from dialog_engine.facades.responses.routes import ANSWER
from dialog_engine.facades.stream import Part, stream_of
from dialog_engine.http import described, turns, waiting
from dialog_engine.http.requests import Engine, Sender, Subject, large_answer

router = APIRouter(prefix="/v1", tags=["OpenAI"])
_Include = Annotated[list[str] | None, Query(alias="include[]", description="Has no effect: what there is is shown.")]


async def included(include: _Include = None) -> None:
    """Dependency of routes whose clients may ask for parts that other servers leave out."""


@router.get(
    "/responses/{response_id}",
    response_class=Response,
    responses=ANSWER | described.NOT_FOUND,
    dependencies=[Depends(included)],
)
async def retrieve(
    response_id: str,
    engine: Engine,
    subject: Subject,
    request: Request,
    stream: Annotated[bool, Query(description="Its events, from the first one on.")] = False,
    starting_after: Annotated[int, Query(ge=0, description="The events behind the one with this number.")] = 0,
) -> Response:
    """A response as it is now, or its events to its end."""
    form, record = await kept_response(response_id, engine, subject, request)
    if not stream:
        return JSONResponse(await document_of(form, record, engine, subject))
    slot = await engine.consumption.stream(subject)
    try:
        part = Part(after=starting_after)
        encoder = partial(ResponseEncoder, form)
        return await stream_of(engine, subject, form.turn_id, encoder, {}, part, on_end=slot.release)
    except BaseException:
        await slot.release()
        raise


@router.post("/responses/{response_id}/cancel", responses=described.NOT_FOUND)
async def cancel(response_id: str, engine: Engine, sender: Sender, request: Request) -> dict[str, Any]:
    """Stop a response that is written: the model, and its tool calls."""
    form, _ = await kept_response(response_id, engine, sender.subject, request)
    await turns.cancel(form.turn_id, engine, sender, request)
    record = await waiting.record_of(engine, sender.subject, form.turn_id)
    return await document_of(form, record, engine, sender.subject)


@router.delete("/responses/{response_id}", responses=described.NOT_FOUND | described.CONFLICT)
async def delete(response_id: str, engine: Engine, sender: Sender, request: Request) -> dict[str, Any]:
    """Stop a response that is written, and forget it. Where it is all of its session, that is erased; what is a part of
    a conversation goes with that."""
    form, record = await kept_response(response_id, engine, sender.subject, request)
    await turns.cancel(form.turn_id, engine, sender, request)
    is_alone = await engine.responses.forget(sender.subject, form.turn_id, key_id=sender.key_id)
    if is_alone and isinstance(record, TurnRecord) and not form.said.get("conversation"):
        await engine.personal_data.delete(sender.subject, record.session_id, key_id=sender.key_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.get(
    "/responses/{response_id}/input_items",
    responses=described.NOT_FOUND | described.problems((HTTPStatus.BAD_REQUEST,)),
    dependencies=[Depends(included), Depends(large_answer)],
)
async def list_input_items(
    response_id: str,
    engine: Engine,
    subject: Subject,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str, Query(description="The id of the last item of the page before.")] = "",
) -> dict[str, Any]:
    """What the request of a response has sent."""
    form, record = await kept_response(response_id, engine, subject, request)
    if form.answered:
        items = answer_items(form.turn_id, form.answered, await engine.archive.turn_messages(form.turn_id))
    else:
        is_waiting = isinstance(record, WaitingMessage)
        text = record.text if is_waiting else (await engine.archive.turn_messages(form.turn_id))[0].content
        items = input_items(form.turn_id, text, await engine.responses.brought(form.turn_id))
        if is_waiting and record.withdrawn:
            items = []  # it is forgotten
    return page_of(items if order == "asc" else items[::-1], after, limit)


def page_of(items: Sequence[dict[str, Any]], after: str, limit: int) -> dict[str, Any]:
    """A page of a list, behind the item with the id `after`, '' for none. Raises ProblemError: no item has this id."""
    ids = [each["id"] for each in items]
    if after and after not in ids:
        raise refused("after", "is not the id of an item of this response")
    rest = items[ids.index(after) + 1 :] if after else items
    page = rest[:limit]
    ends = {"first_id": page[0]["id"] if page else "", "last_id": page[-1]["id"] if page else ""}
    return {"object": "list", "data": page, **ends, "has_more": len(rest) > limit}
