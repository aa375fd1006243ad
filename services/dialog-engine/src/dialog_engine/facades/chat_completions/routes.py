"""The route of Chat Completions, as the OpenAI SDKs and the pages made for them use it."""

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request, Response

from dialog_engine.chat.client_calls import GivenResult
from dialog_engine.chat.requests import MAX_NAME, SessionName, StartingRequest
from dialog_engine.errors import ClientToolError
from dialog_engine.facades.chat_completions.answer import completion
from dialog_engine.facades.chat_completions.chunks import ChunkEncoder, Form, Steps
from dialog_engine.facades.chat_completions.request import CompletionRequest, read_request
from dialog_engine.facades.large_bodies import place_for, read
from dialog_engine.facades.names import in_named
from dialog_engine.facades.openai.places import place_of_question
from dialog_engine.facades.stream import Part, stream_of
from dialog_engine.http import described, turns
from dialog_engine.http.about import model_named
from dialog_engine.http.bodies import ToolsRequest, WhenLeft, check_length
from dialog_engine.http.messages import TurnRequest
from dialog_engine.http.plain import PlainAnswer
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.repetition import Key, RetryCount, answering, starting_request
from dialog_engine.http.requests import Engine, Sender
from dialog_engine.http.responses import about_turn
from dialog_engine.http.services import Services
from dialog_engine.identity.principal import Principal
from dialog_engine.model import Leaving
from dialog_engine.tool_calls.client_tools import outcome_of
from plugins_contract.outcomes import TextBlock

PATH = "/v1/chat/completions"
PROTOCOL = "chat-completions"
"""Whose names of conversations these are, in the store."""
NAMES = ("x-session-id", "x-openwebui-chat-id", "x-conversation-id")
"""The headers with a client's name of the conversation, or the id of a session; the first that is there counts."""

_ANSWER: described.Responses = {
    HTTPStatus.OK.value: {
        "description": "A completion, or the chunks of one.",
        "content": {"text/event-stream": {}, "application/json": {"schema": {"type": "object"}}},
    }
}
_SCHEMA = {
    "type": "object",
    "description": "As in OpenAI's API; `docs/clients.md` says what has an effect here.",
    "required": ["model", "messages"],
    "properties": {
        "model": {"type": "string"},
        "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
        "stream": {"type": "boolean"},
    },
}

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post(
    "/chat/completions",
    response_class=Response,
    responses=_ANSWER
    | described.BODY
    | described.NOT_FOUND
    | described.CONFLICT
    | described.problems((HTTPStatus.BAD_GATEWAY,)),
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _SCHEMA}}}},
)
async def completions(
    request: Request,
    engine: Engine,
    sender: Sender,
    key: Key = None,
    retry_count: RetryCount = None,
    x_on_disconnect: WhenLeft = None,
) -> Response:
    """Answer a conversation, as a stream of chunks or as one completion."""
    slot = await engine.consumption.stream(sender.subject)
    try:
        async with place_for(request, engine, sender.subject):
            starting = await starting_request(request, key, retry_count)  # reads the body
            wanted = await read(request, read_request)
            leaving = engine.leaving.of(x_on_disconnect, usually="cancel")
            form = _form(wanted, engine)
            if wanted.results:
                model_named(wanted.model, engine)
                sent = await _answered(wanted.results, request, engine, sender, starting)
            else:
                sent = await _sent(wanted, request, engine, sender, starting, leaving)
        answered = frozenset(wanted.results)
        if not wanted.stream:
            document = partial(completion, form, answered)
            return PlainAnswer(engine, sender.subject, sent.turn_id, on_end=slot.release, document=document)
        encoder = partial(ChunkEncoder, form)
        part = Part(answered=answered)
        return await stream_of(engine, sender.subject, sent.turn_id, encoder, {}, part, on_end=slot.release)
    except BaseException:
        await slot.release()
        raise


def _form(wanted: CompletionRequest, engine: Services) -> Form:
    options = engine.completions
    return Form(wanted.model, Steps(wanted.tool_steps or options.steps), usage=wanted.usage, page=options.page)


async def _answered(
    results: Mapping[str, str], request: Request, engine: Services, sender: Principal, starting: StartingRequest
) -> turns.SentTurn:
    """Commit the results of calls of the client's tools, which name their turn. Raises as `ClientCalls.answer`."""
    turn = await engine.client_calls.turn_of(sender.subject, next(iter(results)))
    about_turn(request, turn.turn_id, turn.session_id)
    given = [
        GivenResult(call_id, outcome_of([TextBlock(content)], is_error=False)) for call_id, content in results.items()
    ]
    engine.readers.answers(turn.turn_id)
    async with answering(starting, engine, sender.subject, turn.turn_id) as answer_key:
        await engine.client_calls.answer(sender.subject, turn.turn_id, given, sender.key_id, answer_key)
    return turns.SentTurn(turn.turn_id, turn.session_id, turn.status)


async def _sent(
    wanted: CompletionRequest,
    request: Request,
    engine: Services,
    sender: Principal,
    starting: StartingRequest,
    leaving: Leaving | None,
) -> turns.SentTurn:
    """Begin the turn, or let its message wait. Raises as `turns.sent_turn`."""
    model = model_named(wanted.model, engine)
    check_length(wanted.question, engine.max_message_chars)
    options = engine.completions
    is_task = bool(options.tasks) and wanted.question.lstrip().startswith(options.tasks)
    name = "" if is_task else next((request.headers[each] for each in NAMES if request.headers.get(each)), "")
    if len(name) > MAX_NAME:
        detail = f"the name of a conversation has {MAX_NAME} characters at most"
        raise ProblemError(HTTPStatus.BAD_REQUEST, "INVALID_REQUEST", detail, field="X-Session-Id")
    fields: dict[str, Any] = {"message": wanted.question, "model": model[0]}
    if is_task or wanted.no_tools or model[1]:
        fields["tools"] = ToolsRequest(servers=[])

    async def send(session_id: str | None, starting: StartingRequest) -> turns.SentTurn:
        place = await place_of_question(
            wanted.brought, session_id, engine, sender.subject, named=bool(name), alone=is_task
        )
        follows: dict[str, Any] = {} if place.parent is None else {"parent_turn_id": place.parent}
        native = TurnRequest.model_construct(**fields, **follows, on_busy="queue", on_open_question="decline")
        begun_by = native, place.session_id, engine, sender, starting, request
        return await turns.sent_turn(*begun_by, brought=place.brought, leaving=leaving)

    session_name = SessionName(PROTOCOL, name) if name else None
    try:
        return await in_named(session_name, engine, sender.subject, starting, send)
    except ClientToolError as error:
        raise _refused_tool(error) from None


def _refused_tool(error: ClientToolError) -> ProblemError:
    field = "tools" if error.number is None else f"tools[{error.number}]{_FIELDS.get(error.field, '')}"
    return ProblemError(HTTPStatus.BAD_REQUEST, error.code, str(error), field=field)


_FIELDS = {"name": ".function.name", "description": ".function.description", "inputSchema": ".function.parameters"}
