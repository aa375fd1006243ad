"""Responses that are stored, by their ids. An id of another subject is that of nothing."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request

from dialog_engine.chat.archive import TurnRecord
from dialog_engine.chat.events import START, Cursor
from dialog_engine.chat.waiting_messages import WaitingMessage
from dialog_engine.errors import TurnNotFoundError
from dialog_engine.facades.responses.answer import response_until
from dialog_engine.facades.responses.encoder import Form, ResponseEncoder
from dialog_engine.facades.responses.ids import RESPONSE, Named, named
from dialog_engine.http import turns, waiting
from dialog_engine.http.plain import RUNNING
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.responses import about_turn
from dialog_engine.http.services import Services

OF_EACH: Mapping[str, Any] = {"metadata": {}, "background": False}
"""What each response of a turn says of its own request, and what it says where nothing is kept."""
NEWEST = Cursor(10**15, 0)
"""A place behind every event of a log."""
Kept = TurnRecord | WaitingMessage
"""The turn of a response, or the message that waits to become it."""


async def kept_response(response_id: str, engine: Services, subject: str, request: Request) -> tuple[Form, Kept]:
    """A response that is stored, and its turn. Raises ProblemError: there is none."""
    found = named(response_id, RESPONSE) or Named("")
    record, response = await kept_of(found, "response_id", engine, subject)
    about_turn(request, found.owner, (record.turn if isinstance(record, WaitingMessage) else record).session_id)
    return form_of(found.owner, response, found.rest), record


async def kept_of(name: Named, param: str, engine: Services, subject: str) -> tuple[Kept, Mapping[str, Any]]:
    """The turn of the response with this id, which the field `param` has, and what is stored of its request. Raises
    ProblemError: there is none."""
    record = await kept_turn(name.owner, param, engine, subject)
    response = await response_of(name.owner, param, engine)
    if name.rest and not await engine.archive.asked(name.owner, name.rest):
        raise not_found(param)
    return record, response


async def kept_turn(turn_id: str, param: str, engine: Services, subject: str) -> Kept:
    """A turn, which the field `param` names. Raises ProblemError: there is none."""
    try:
        return await waiting.record_of(engine, subject, turn_id)
    except TurnNotFoundError:
        raise not_found(param) from None


async def response_of(turn_id: str, param: str, engine: Services) -> Mapping[str, Any]:
    """What the responses of a turn say of its request. Raises ProblemError: they are not stored, or forgotten."""
    response = (await engine.responses.brought(turn_id)).response
    if response is None:
        raise not_found(param)
    return response


def form_of(turn_id: str, response: Mapping[str, Any], answered: str = "") -> Form:
    """A response of a turn, from what is stored of its request; `answered` is as in `Form`. One that goes on with the
    turn has the metadata of its own request, and is in the background by that."""
    said = response["said"]
    if answered:
        own = {name: response.get(name, {}).get(answered, without) for name, without in OF_EACH.items()}
        said = {**said, **own}
    return Form(turn_id, said, answered, response["listed"])


async def document_of(form: Form, record: Kept, engine: Services, subject: str) -> dict[str, Any]:
    """A response as it is now."""
    if isinstance(record, WaitingMessage):
        return ResponseEncoder(form).document | {"status": "cancelled" if record.withdrawn else "queued"}
    newest = NEWEST
    if record.status == RUNNING:
        frame = await engine.frames.newest(form.turn_id)
        if frame is None and not record.parked:
            return ResponseEncoder(form).document
        newest = Cursor.parse(frame.id) if frame else START
    batches = await turns.batches_of(form.turn_id, engine, subject)
    if batches is None:
        raise not_found("response_id")
    async with engine.large_answers.place(subject):
        return await response_until(form, batches, newest)


def not_found(param: str) -> ProblemError:
    """There is no such response."""
    return refused(param, "there is no such response", HTTPStatus.NOT_FOUND, "RESPONSE_NOT_FOUND")


def refused(
    param: str, why: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST, code: str = "INVALID_REQUEST"
) -> ProblemError:
    """A request that cannot be honoured because of a field."""
    return ProblemError(status, code, f"{param}: {why}", errors=[{"field": param, "message": why}])
