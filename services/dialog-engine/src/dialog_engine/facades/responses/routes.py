"""The routes of the Responses API, as the OpenAI SDKs and what is made with them use it."""

from contextlib import nullcontext, suppress
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from dialog_engine.chat.requests import StartingRequest
from dialog_engine.chat.waiting_messages import WAITING, WaitingMessage
from dialog_engine.errors import ClientToolError
from dialog_engine.facades.large_bodies import place_for, read
from dialog_engine.facades.names import in_named
from dialog_engine.facades.openai.places import Place, place_of_question
from dialog_engine.facades.responses.answer import stored_response
from dialog_engine.facades.responses.answers import Asked, answered
from dialog_engine.facades.responses.encoder import ResponseEncoder
from dialog_engine.facades.responses.ids import CONVERSATION, named
from dialog_engine.facades.responses.kept import Kept, document_of, form_of, kept_of, kept_turn, refused
from dialog_engine.facades.responses.request import ResponseRequest, read_request
from dialog_engine.facades.stream import stream_of
from dialog_engine.http import described, turns, waiting
from dialog_engine.http.about import model_named
from dialog_engine.http.bodies import ToolsRequest, WhenLeft, check_length
from dialog_engine.http.messages import TurnRequest
from dialog_engine.http.plain import PlainAnswer
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.repetition import Key, RetryCount, starting_request
from dialog_engine.http.requests import Engine, Sender
from dialog_engine.http.services import Services
from dialog_engine.identity.principal import Principal
from dialog_engine.model import Brought, Leaving
from plugins_contract.catalog import ToolEntry
from plugins_contract.choice import ToolChoice

PATH = "/v1/responses"
LISTED_BYTES = 65_536
"""Of the tools in `mcp_list_tools`. Beyond it they are listed by their names."""
MAX_LISTED = 1_000
"""The most tools of a server in it."""

ANSWER: described.Responses = {
    HTTPStatus.OK.value: {
        "description": "A response, or the events of one.",
        "content": {"text/event-stream": {}, "application/json": {"schema": {"type": "object"}}},
    }
}
_SCHEMA = {
    "type": "object",
    "description": "As in OpenAI's API; `docs/clients.md` says what has an effect here.",
    "required": ["model", "input"],
    "properties": {
        "model": {"type": "string"},
        "input": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
        "stream": {"type": "boolean"},
        "background": {"type": "boolean"},
        "store": {"type": "boolean"},
        "previous_response_id": {"type": "string"},
    },
}

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post(
    "/responses",
    response_class=Response,
    responses=ANSWER
    | described.BODY
    | described.NOT_FOUND
    | described.CONFLICT
    | described.problems((HTTPStatus.BAD_GATEWAY,)),
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _SCHEMA}}}},
)
async def create(
    request: Request,
    engine: Engine,
    sender: Sender,
    key: Key = None,
    retry_count: RetryCount = None,
    x_on_disconnect: WhenLeft = None,
) -> Response:
    """Answer a message, or go on with a turn whose calls were approved, refused, or run by the client: as events, as
    one response, or in the background."""
    slot = await engine.consumption.stream(sender.subject)
    try:
        async with place_for(request, engine, sender.subject):
            starting = await starting_request(request, key, retry_count)  # reads the body
            wanted = await read(request, read_request)
            leaving = engine.leaving.of(x_on_disconnect, usually="cancel", background=wanted.background)
            if wanted.answers or wanted.results:
                asked = await answered(wanted, request, engine, sender, starting, leaving)
            else:
                asked = await _sent(wanted, request, engine, sender, starting, leaving)
        if wanted.stream:
            encoder = partial(ResponseEncoder, asked.form)
            return await stream_of(engine, sender.subject, asked.turn.turn_id, encoder, {}, on_end=slot.release)
        if wanted.background:
            await slot.release()
            is_queued = asked.turn.status == WAITING
            return JSONResponse(ResponseEncoder(asked.form).document | ({"status": "queued"} if is_queued else {}))
        if (response := await _complete_before(asked, engine, sender.subject)) is not None:
            await slot.release()
            return JSONResponse(response)
        document = partial(stored_response, asked.form)
        return PlainAnswer(engine, sender.subject, asked.turn.turn_id, on_end=slot.release, document=document)
    except BaseException:
        await slot.release()
        raise


async def _complete_before(asked: Asked, engine: Services, subject: str) -> dict[str, Any] | None:
    """The response, if it was complete before this request: its turn may have gone on since."""
    if not asked.turn.before:
        return None
    record = await waiting.record_of(engine, subject, asked.turn.turn_id)
    response = await document_of(asked.form, record, engine, subject)
    return None if response["status"] in ("queued", "in_progress") else response


# --- What a request asks ---


async def _sent(
    wanted: ResponseRequest,
    request: Request,
    engine: Services,
    sender: Principal,
    starting: StartingRequest,
    leaving: Leaving | None,
) -> Asked:
    """Begin the turn, or let its message wait. Raises as `turns.sent_turn`."""
    model = model_named(wanted.model, engine)
    check_length(wanted.question, engine.max_message_chars)
    response = {"said": wanted.said, "listed": _listed(wanted, engine, sender)}
    fields: dict[str, Any] = {"message": wanted.question, "model": model[0]}
    if (choice := ToolChoice(servers=()) if model[1] else wanted.tools.choice) is not None:
        fields["tools"] = ToolsRequest.model_construct(servers=choice.servers, allow=choice.allow, deny=[])

    async def send(session_id: str | None, starting: StartingRequest) -> turns.SentTurn:
        place = await _place(wanted, session_id, engine, sender.subject)
        follows: dict[str, Any] = {} if place.parent is None else {"parent_turn_id": place.parent}
        native = TurnRequest.model_construct(**fields, **follows, on_busy="queue", on_open_question="decline")
        brought = msgspec.structs.replace(place.brought, response=response) if wanted.store else place.brought
        begun_by = native, place.session_id, engine, sender, starting, request
        return await turns.sent_turn(*begun_by, brought=brought, leaving=leaving)

    try:
        sent = await in_named(wanted.session_name, engine, sender.subject, starting, send)
    except ClientToolError as error:
        raise _refused_function(error, wanted) from None
    kept = (await engine.responses.brought(sent.turn_id)).response if sent.before else None
    return Asked(form_of(sent.turn_id, kept or response), sent)


def _refused_function(error: ClientToolError, wanted: ResponseRequest) -> ProblemError:
    if error.number is None:
        return refused("tools", str(error), code=error.code)
    field = "parameters" if error.field == "inputSchema" else error.field
    return refused(f"tools[{[*wanted.tools.functions][error.number]}].{field}", str(error), code=error.code)


async def _place(wanted: ResponseRequest, session_id: str | None, engine: Services, subject: str) -> Place:
    """Where the question belongs: behind a response, in a conversation, behind an item that the client sends back, or
    in a new session. One that is not stored goes on where nothing differs from what the client sends again.
    `session_id` is that of a conversation with the client's name, None for a new one."""
    if wanted.after:
        record, _ = await kept_of(wanted.after, "previous_response_id", engine, subject)
        return _behind(record, wanted.brought)
    if wanted.session_name:
        return Place(session_id, None, wanted.brought)
    if wanted.conversation:
        conversation = named(wanted.conversation, CONVERSATION)
        return Place(conversation.owner if conversation else wanted.conversation, None, wanted.brought)
    if wanted.behind:
        with nullcontext() if wanted.refers else suppress(ProblemError):
            record = await kept_turn(wanted.behind, "input", engine, subject)
            return _behind(record, msgspec.structs.replace(wanted.brought, said=wanted.new))
    if wanted.store:
        return Place(None, None, wanted.brought)
    return await place_of_question(wanted.brought, None, engine, subject, named=False, alone=False)


def _behind(record: Kept, brought: Brought) -> Place:
    """Behind this turn; behind the last one of the session, where it has not begun."""
    if isinstance(record, WaitingMessage):
        return Place(record.turn.session_id, None, brought)
    return Place(record.session_id, record.turn_id, brought)


def _listed(wanted: ResponseRequest, engine: Services, sender: Principal) -> list[dict[str, Any]]:
    """The tools of the servers that a request names. Raises ProblemError: there is no such server."""
    if not wanted.tools.labels:
        return []
    directory = engine.tools.visible_to(sender.subject, sender.roles, wanted.tools.choice)
    catalogs = {view.catalog.server: view.catalog for view in directory.servers}
    listed: list[dict[str, Any]] = []
    for number, label in enumerate(wanted.tools.labels):
        if label not in catalogs:
            usable = engine.tools.visible_to(sender.subject, sender.roles).servers
            names = ", ".join(sorted(view.catalog.server for view in usable))
            why = f"there is no server {label!r}: the servers are {names}"
            raise refused(f"tools[{number}].server_label", why)
        tools = catalogs[label].tools[:MAX_LISTED]
        listed.append({"server_label": label, "tools": [_tool(each) for each in tools]})
    if len(msgspec.json.encode(listed)) > LISTED_BYTES:
        for each in listed:
            each["tools"] = [{"name": tool["name"], "input_schema": {"type": "object"}} for tool in each["tools"]]
    return listed


def _tool(tool: ToolEntry) -> dict[str, Any]:
    return {"name": tool.tool, "description": tool.description, "input_schema": tool.input_schema}
