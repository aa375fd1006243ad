"""The routes of OpenAI's Conversations: a conversation is a session, and its items are what was said and called in it.

Clients add messages, which come before the next question. What a turn has stays until the conversation is deleted.
"""

from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from dialog_engine.chat.conversations import Addition
from dialog_engine.facades.conversations.pages import ConversationItems, Order, Place, list_of
from dialog_engine.facades.conversations.request import read_added, read_created, read_described
from dialog_engine.facades.large_bodies import place_for, read
from dialog_engine.facades.openai.objects import created
from dialog_engine.facades.responses.ids import CONVERSATION, item_id, named
from dialog_engine.facades.responses.kept import refused
from dialog_engine.facades.responses.stored import included
from dialog_engine.http import described
from dialog_engine.http.bodies import check_length
from dialog_engine.http.repetition import Key, RetryCount, starting_request
from dialog_engine.http.requests import Engine, Sender, Subject, large_answer
from dialog_engine.http.responses import about_session
from dialog_engine.http.services import Services
from dialog_engine.http.sessions import stopped_and_deleted
from plugins_contract.messages import new_id

PATH = "/v1/conversations"
_ADDS = described.BODY | described.NOT_FOUND | described.CONFLICT
_UNKNOWN_PLACE = described.problems((HTTPStatus.BAD_REQUEST,))
"""`after` is not the id of an item."""
_ITEMS = "/conversations/{conversation_id}/items"
_ITEM = f"{_ITEMS}/{{item_name}}"


def _body(**properties: str) -> dict[str, Any]:
    fields = {name: {"type": [kind, "null"]} for name, kind in properties.items()}
    content = {"application/json": {"schema": {"type": "object", "properties": fields}}}
    return {"requestBody": {"content": content}}


router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post("/conversations", responses=_ADDS, openapi_extra=_body(metadata="object", items="array"))
async def create(
    request: Request, engine: Engine, sender: Sender, key: Key = None, retry_count: RetryCount = None
) -> dict[str, Any]:
    """Begin a conversation, with up to 20 messages that come before its first question."""
    addition_id = new_id()
    async with place_for(request, engine, sender.subject):
        starting = await starting_request(request, key, retry_count)
        metadata, addition = await read(request, lambda body: read_created(body, addition_id))
        _check_lengths(addition, engine)
        session_id = await engine.conversations.create(
            sender.subject, metadata, addition, starting, key_id=sender.key_id
        )
    return await _shown(session_id, engine, sender.subject, request)


@router.get("/conversations/{conversation_id}", responses=described.NOT_FOUND)
async def retrieve(conversation_id: str, engine: Engine, subject: Subject, request: Request) -> dict[str, Any]:
    """A conversation."""
    return await _shown(_session(conversation_id), engine, subject, request)


@router.post(
    "/conversations/{conversation_id}",
    responses=described.BODY | described.NOT_FOUND,
    openapi_extra=_body(metadata="object"),
)
async def update(conversation_id: str, request: Request, engine: Engine, subject: Subject) -> dict[str, Any]:
    """Replace the metadata of a conversation."""
    session_id = _session(conversation_id)
    async with place_for(request, engine, subject):
        metadata = await read(request, read_described)
        await engine.conversations.describe(subject, session_id, metadata)
    return await _shown(session_id, engine, subject, request)


@router.delete("/conversations/{conversation_id}", responses=described.NOT_FOUND | described.CONFLICT)
async def delete(conversation_id: str, engine: Engine, sender: Sender, request: Request) -> dict[str, Any]:
    """Stop what runs in a conversation, and erase its session."""
    session_id = _session(conversation_id)
    await stopped_and_deleted(session_id, engine, sender)
    about_session(request, session_id)
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.post(_ITEMS, responses=_ADDS, openapi_extra=_body(items="array"), dependencies=[Depends(included)])
async def add_items(
    conversation_id: str,
    request: Request,
    engine: Engine,
    sender: Sender,
    key: Key = None,
    retry_count: RetryCount = None,
) -> Response:
    """Add up to 20 messages, which come before the next question. A repetition is answered with those that wait."""
    session_id, addition_id = _session(conversation_id), new_id()
    async with place_for(request, engine, sender.subject):
        starting = await starting_request(request, key, retry_count)
        addition = await read(request, lambda body: read_added(body, addition_id))
        _check_lengths(addition, engine)
        added = await engine.conversations.add(sender.subject, session_id, addition, starting, key_id=sender.key_id)
        items = await _found(session_id, engine, sender.subject, request)
        return _json(list_of(await items.added(added)))


@router.get(
    _ITEMS, responses=described.NOT_FOUND | _UNKNOWN_PLACE, dependencies=[Depends(included), Depends(large_answer)]
)
async def list_items(
    conversation_id: str,
    engine: Engine,
    subject: Subject,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Order = "desc",
    after: Annotated[str, Query(description="The id of the last item of the page before.")] = "",
) -> Response:
    """The items of the path that is shown. A page has fewer than `limit` when they are large."""
    items = await _found(_session(conversation_id), engine, subject, request)
    return _json(await items.page(after, limit, order))


@router.get(_ITEM, responses=described.NOT_FOUND, dependencies=[Depends(included), Depends(large_answer)])
async def retrieve_item(
    conversation_id: str, item_name: str, engine: Engine, subject: Subject, request: Request
) -> Response:
    """One item."""
    items = await _found(_session(conversation_id), engine, subject, request)
    _, item = await _item(items, item_name)
    return _json(item)


@router.delete(_ITEM, responses=described.NOT_FOUND | described.CONFLICT)
async def delete_item(
    conversation_id: str, item_name: str, engine: Engine, sender: Sender, request: Request
) -> dict[str, Any]:
    """Delete a message that was added, while it waits for a question. What a turn has cannot be taken out of it."""
    items = await _found(_session(conversation_id), engine, sender.subject, request)
    place, _ = await _item(items, item_name)
    session_id = items.conversation.session_id
    if place.added is None or not await engine.conversations.remove(
        sender.subject, session_id, place.added, key_id=sender.key_id
    ):
        why = "this item is part of a turn, and cannot be deleted alone: delete the conversation"
        raise refused("item_id", why, HTTPStatus.CONFLICT, "ITEM_IN_TURN")
    return await _shown(session_id, engine, sender.subject, request)


async def _found(session_id: str, engine: Services, subject: str, request: Request) -> ConversationItems:
    conversation = await engine.conversations.find(subject, session_id)
    about_session(request, session_id)
    return ConversationItems(engine, subject, conversation)


async def _item(items: ConversationItems, name: str) -> tuple[Place, dict[str, Any]]:
    found = await items.find(name)
    if found is None:
        raise refused("item_id", "the conversation has no such item", HTTPStatus.NOT_FOUND, "ITEM_NOT_FOUND")
    return found


def _session(conversation_id: str) -> str:
    """The id of the session: `conv_` and that id, or the id itself."""
    found = named(conversation_id, CONVERSATION)
    return found.owner if found else conversation_id


async def _shown(session_id: str, engine: Services, subject: str, request: Request) -> dict[str, Any]:
    conversation = await engine.conversations.find(subject, session_id)
    about_session(request, session_id)
    return {
        "id": item_id(CONVERSATION, session_id),
        "object": "conversation",
        "created_at": created(session_id),
        "metadata": conversation.metadata,
    }


def _check_lengths(addition: Addition, engine: Services) -> None:
    """Raises ProblemError: a message is longer than one of the user may be."""
    for each in addition.messages:
        check_length(each.content, engine.max_message_chars)


def _json(document: Any) -> Response:
    """A document that may have a megabyte."""
    return Response(msgspec.json.encode(document), media_type="application/json")
