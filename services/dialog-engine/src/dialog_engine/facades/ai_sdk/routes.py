"""The routes of the Vercel AI SDK: `useChat` with `api: "/v1/ai-sdk/chat"`."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import AfterValidator, BeforeValidator

from callstream_runtime.long_texts import reading
from dialog_engine.chat.events import START, Cursor
from dialog_engine.chat.requests import SessionName, StartingRequest
from dialog_engine.errors import (
    ApprovalDecidedError,
    ApprovalExpiredError,
    ClientCallAnsweredError,
    TurnNotFoundError,
)
from dialog_engine.facades.ai_sdk.calls import asked_for
from dialog_engine.facades.ai_sdk.encoder import VERSION, AiSdkEncoder, Version
from dialog_engine.facades.ai_sdk.request import MAX_ID, PostedChat, question_of, read_chat
from dialog_engine.facades.images import RefusedError
from dialog_engine.facades.large_bodies import place_for
from dialog_engine.facades.names import in_named
from dialog_engine.facades.stream import WHOLE, Part, stream_of
from dialog_engine.http import described, turns
from dialog_engine.http.bodies import WhenLeft, unicode_text
from dialog_engine.http.messages import TurnRequest
from dialog_engine.http.problems import Problem, ProblemError
from dialog_engine.http.repetition import Key, RetryCount, answering, starting_request
from dialog_engine.http.requests import Engine, Sender, Subject
from dialog_engine.http.responses import about_turn
from dialog_engine.http.services import Services
from dialog_engine.identity.principal import Principal
from dialog_engine.model import Brought, Leaving
from dialog_engine.tool_calls.values import Approve, Given, Refuse

PATH = "/v1/ai-sdk/"
CHAT = f"{PATH}chat"
PROTOCOL = "ai-sdk"
"""Whose names of chats these are, in the store."""
HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}

_CHUNKS: described.Responses = {
    HTTPStatus.OK.value: {"description": "A UI message stream.", "content": {"text/event-stream": {}}}
}
_SCHEMA = {
    "type": "object",
    "description": "What `useChat` posts, and own fields: `docs/clients.md`.",
    "required": ["id", "messages"],
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": MAX_ID},
        "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
    },
}

router = APIRouter(prefix="/v1/ai-sdk", tags=["Vercel AI SDK"], responses=described.sentences(described.EVERYWHERE))

ChatId = Annotated[str, Path(min_length=1, max_length=MAX_ID), AfterValidator(unicode_text)]


def _number(given: Any) -> Any:
    return int(given) if given in ("5", "6", "7") else given


AskedVersion = Annotated[
    Version, BeforeValidator(_number), Query(alias="v", description="The major version of the package `ai`.")
]


@router.post(
    "/chat",
    response_class=Response,
    responses=_CHUNKS
    | described.sentences(
        described.BODY | described.problems((HTTPStatus.BAD_REQUEST,)) | described.NOT_FOUND | described.CONFLICT
    ),
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _SCHEMA}}}},
)
async def chat(
    request: Request,
    engine: Engine,
    sender: Sender,
    key: Key = None,
    retry_count: RetryCount = None,
    x_on_disconnect: WhenLeft = None,
    version: AskedVersion = VERSION,
) -> Response:
    """Begin a turn with the user's message, answer one again, or go on with one whose calls were approved, refused or
    run by the page; and stream what follows as a UI message stream."""
    slot = await engine.consumption.stream(sender.subject)
    try:
        async with place_for(request, engine, sender.subject):
            starting = await starting_request(request, key, retry_count)  # reads the body
            leaving = engine.leaving.of(x_on_disconnect, usually="continue")
            turn = await _begun(await _posted(request), engine, sender, starting, request, leaving)
        return await _stream(turn, engine, sender.subject, version, slot.release)
    except BaseException:
        await slot.release()
        raise


@router.get(
    "/chat/{chat_id:path}/stream",
    response_class=Response,
    responses=_CHUNKS | described.empty(HTTPStatus.NO_CONTENT),
)
async def stream(
    chat_id: ChatId, engine: Engine, subject: Subject, request: Request, version: AskedVersion = VERSION
) -> Response:
    """The turn that runs in the chat, from its start; 204 when none does."""
    running = await _running(chat_id, engine, subject)
    if running is None:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    about_turn(request, running.turn_id, running.session_id)
    slot = await engine.consumption.stream(subject)
    try:
        newest = await engine.frames.newest(running.turn_id)
        part = Part(beyond=Cursor.parse(newest.id) if newest else START)
        return await _stream(replace(running, part=part), engine, subject, version, slot.release)
    except BaseException:
        await slot.release()
        raise


@router.post(
    "/chat/{chat_id:path}/stop", status_code=HTTPStatus.ACCEPTED, responses=described.empty(HTTPStatus.NO_CONTENT)
)
async def stop(chat_id: ChatId, engine: Engine, subject: Subject, request: Request) -> Response:
    """Stop the turn that runs in the chat; 204 when none does."""
    if running := await _running(chat_id, engine, subject):
        about_turn(request, running.turn_id, running.session_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(turns.CANCEL_SECONDS):
                await engine.turns.cancel(running.turn_id)
        return Response(status_code=HTTPStatus.ACCEPTED)
    return Response(status_code=HTTPStatus.NO_CONTENT)


def as_sentence(problem: Problem) -> Response:
    """A problem as one plain sentence: the SDK shows the body of an error to people."""
    detail = str(problem.document["detail"])
    sentence = detail[:1].upper() + detail[1:].rstrip(".") + "."
    kept = ("retry-after", "www-authenticate", "allow", "x-should-retry")
    headers = {name: value for name, value in problem.headers.items() if name in kept}
    return PlainTextResponse(sentence, problem.status_code, headers)


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of a session, and the part of it that a client gets."""

    turn_id: str
    session_id: str
    part: Part = WHOLE


async def _stream(
    turn: _Turn, engine: Services, subject: str, version: Version, on_end: Callable[[], Coroutine[Any, Any, None]]
) -> Response:
    encoder = partial(AiSdkEncoder, version)
    return await stream_of(engine, subject, turn.turn_id, encoder, HEADERS, turn.part, on_end=on_end)


async def _running(chat_id: str, engine: Services, subject: str) -> _Turn | None:
    session_id = await engine.sessions.find_named(subject, SessionName(PROTOCOL, chat_id))
    if session_id is None:
        return None
    running = await engine.archive.transcript(subject, session_id, limit=1)
    turn_id = running.session.running_turn_id
    return _Turn(turn_id, session_id) if turn_id else None


async def _posted(request: Request) -> PostedChat:
    body = await request.body()
    try:
        return await reading(len(body), read_chat, body)
    except RefusedError as error:
        raise _refused(error) from None


async def _begun(
    body: PostedChat,
    engine: Services,
    sender: Principal,
    starting: StartingRequest,
    request: Request,
    leaving: Leaving | None,
) -> _Turn:
    """The turn that the request begins, or goes on with."""
    if not body.answered and not body.results:
        return await _sent(body, engine, sender, starting, request, leaving)
    turn = await _answered(body, engine, sender, starting)
    about_turn(request, turn.turn_id, turn.session_id)
    return turn


async def _answered(body: PostedChat, engine: Services, sender: Principal, starting: StartingRequest) -> _Turn:
    """Commit what the user has said to requests for approval, and what the page's tools have returned. Returns the
    turn, from there on.

    What was decided or returned before stands, and the stream shows it. Raises as `answering`,
    `Approvals.decide` and `ClientCalls.answer`.
    """
    turn = await _waiting(body, engine, sender.subject)
    try:
        given_results = [part.given() for part in body.results]
    except RefusedError as error:
        raise _refused(error) from None
    engine.readers.answers(turn.turn_id)
    async with answering(starting, engine, sender.subject, turn.turn_id) as answer_key:
        results = await engine.client_calls.waiting(turn.turn_id, given_results)
        with suppress(ClientCallAnsweredError):
            await engine.client_calls.answer(sender.subject, turn.turn_id, results, sender.key_id, answer_key)
        for each in body.answered:
            call, question_hash = asked_for(each.id)
            given: Given = Refuse(each.reason.strip(), key_id=sender.key_id, answer_key=answer_key)
            if each.approved:
                given = Approve(question_hash, None, key_id=sender.key_id, answer_key=answer_key)
            with suppress(ApprovalDecidedError, ApprovalExpiredError):
                await engine.approvals.decide(sender.subject, turn.turn_id, call, given, sender.roles)
    answered = {asked_for(each.id)[0] for each in body.answered} | {each.call_id for each in given_results}
    return replace(turn, part=Part(answered=answered))


async def _waiting(body: PostedChat, engine: Services, subject: str) -> _Turn:
    """The turn whose calls were answered. Raises TurnNotFoundError."""
    turn_id = body.messages[-1].id
    try:
        return _Turn(turn_id, (await engine.archive.turn(subject, turn_id)).session_id)
    except TurnNotFoundError:  # the page has given its message another id
        if running := await _running(body.id, engine, subject):
            return running
        raise


async def _sent(
    body: PostedChat,
    engine: Services,
    sender: Principal,
    starting: StartingRequest,
    request: Request,
    leaving: Leaving | None,
) -> _Turn:
    """Begin a turn, or let its message wait behind the one that runs. Raises as `turns.sent_turn`."""
    own = {"onBusy": "queue", "onOpenQuestion": "decline", "model": body.model, "toolMode": body.tool_mode}

    async def send(session_id: str | None, starting: StartingRequest) -> turns.SentTurn:
        native = TurnRequest.model_validate(own)
        native.tools, native.client_tools = body.tools, body.client_tools
        if body.trigger == "regenerate-message":
            native.regenerate_of = await _last_answer(body, session_id, engine, sender.subject)
            return await turns.sent_turn(native, session_id, engine, sender, starting, request, leaving=leaving)
        native.message, brought = await _asked(body)
        if (parent := _parent(body, session_id)) is not None:
            native.parent_turn_id = parent
        return await turns.sent_turn(native, session_id, engine, sender, starting, request, brought, leaving)

    sent = await in_named(SessionName(PROTOCOL, body.id), engine, sender.subject, starting, send)
    return _Turn(sent.turn_id, sent.session_id)


async def _last_answer(body: PostedChat, session_id: str | None, engine: Services, subject: str) -> str:
    """The turn that is answered once more. Raises TurnNotFoundError."""
    if session_id is None:
        raise TurnNotFoundError("there is no answer in this chat that could be given again")
    if body.message_id:
        return body.message_id
    transcript = await engine.archive.transcript(subject, session_id, limit=1)
    return transcript.session.leaf_turn_id or ""


async def _asked(body: PostedChat) -> tuple[str, Brought]:
    """What the last message asks. Raises ProblemError."""
    last = body.messages[-1]
    if last.role != "user":
        text = "the last message must be the user's, or have an answer to what the turn waits for"
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", text, field="messages")
    try:
        text, media = await reading(sum(len(part.url) for part in last.parts), question_of, last)
    except RefusedError as error:
        raise _refused(error) from None
    return text, Brought(media=media)


def _parent(body: PostedChat, session_id: str | None) -> str | None:
    """The turn that an edited message follows, in another branch: that of the answer before it, '' for none. None for
    any other message. Raises TurnNotFoundError."""
    if body.message_id != body.messages[-1].id:
        return None
    answers = [each.id for each in body.messages if each.role == "assistant"]
    if session_id is None and answers:
        raise TurnNotFoundError(f"there is no turn {answers[-1]} in this chat")
    return None if session_id is None else next(iter(answers), "")


def _refused(error: RefusedError) -> ProblemError:
    return ProblemError(HTTPStatus.BAD_REQUEST, "INVALID_REQUEST", str(error), field=error.param)
