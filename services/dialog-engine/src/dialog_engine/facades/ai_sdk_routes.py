"""The routes of the Vercel AI SDK: `useChat` with `api: "/v1/ai-sdk/chat"`."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dialog_engine.chat.events import START, Cursor
from dialog_engine.chat.requests import StartingRequest
from dialog_engine.errors import ApprovalDecidedError, ApprovalExpiredError, TurnNotFoundError
from dialog_engine.facades.ai_sdk import VERSION, AiSdkEncoder, Version
from dialog_engine.facades.ai_sdk_calls import asked_for
from dialog_engine.facades.stream import WHOLE, Part, stream_of
from dialog_engine.http import described, turns
from dialog_engine.http.bodies import ToolsRequest, UnicodeText, unicode_text
from dialog_engine.http.messages import TurnRequest
from dialog_engine.http.problems import Problem, ProblemError
from dialog_engine.http.repetition import Starting
from dialog_engine.http.requests import Engine, Sender, Subject
from dialog_engine.http.responses import about_turn
from dialog_engine.http.services import Services
from dialog_engine.identity.principal import Principal
from dialog_engine.tool_calls.approvals.rules import MAX_REASON
from dialog_engine.tool_calls.values import Approve, Given, Refuse

PATH = "/v1/ai-sdk/"
PROTOCOL = "ai-sdk"
"""Whose names of chats these are, in the store."""
HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
MAX_ID = 200
MAX_PARTS = 10_000
"""Of one message. An answer has a few for each of its calls."""

router = APIRouter(prefix="/v1/ai-sdk", tags=["Vercel AI SDK"], responses=described.sentences(described.EVERYWHERE))

ChatId = Annotated[str, Path(min_length=1, max_length=MAX_ID), AfterValidator(unicode_text)]


def _number(given: Any) -> Any:
    return int(given) if given in ("5", "6", "7") else given


AskedVersion = Annotated[
    Version, BeforeValidator(_number), Query(alias="v", description="The major version of the package `ai`.")
]


class Posted(BaseModel):
    """A part of what `useChat` posts. Fields that have no meaning here are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True)


class PostedApproval(Posted):
    """What the user was asked, and has answered."""

    id: UnicodeText
    approved: bool = False
    reason: Annotated[UnicodeText, Field(max_length=MAX_REASON)] = ""


class PostedPart(Posted):
    """A part of a message: text, a file, or a tool call with its state."""

    type: str
    text: UnicodeText = ""
    state: str = ""
    approval: PostedApproval | None = None


class PostedMessage(Posted):
    """A message as the client has it. One of the assistant has the id of its turn."""

    id: UnicodeText
    role: Literal["system", "user", "assistant"]
    parts: Annotated[list[PostedPart], Field(max_length=MAX_PARTS, fail_fast=True)]


def _counting(messages: Any) -> Any:
    """What counts of a conversation: its last message, and the id of the answer before that. The rest, which may be
    long, is not read."""
    if not isinstance(messages, list):
        return messages
    given = cast("list[Any]", messages)
    answer = next((each for each in reversed(given[:-1]) if _is_answer(each)), None)
    before: list[Any] = [{**answer, "parts": []}] if answer else []
    return [*before, *given[-1:]]


def _is_answer(message: Any) -> bool:
    return isinstance(message, dict) and cast("dict[str, Any]", message).get("role") == "assistant"


class PostedChat(Posted):
    """What `useChat` posts."""

    id: Annotated[UnicodeText, Field(min_length=1, max_length=MAX_ID, description="A name, or the id of a session.")]
    messages: Annotated[list[PostedMessage], Field(min_length=1), BeforeValidator(_counting)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: UnicodeText | None = None
    model: UnicodeText | None = None
    tool_mode: UnicodeText | None = None
    tools: ToolsRequest | None = None

    @property
    def answered(self) -> Sequence[PostedApproval]:
        """What the user has said to the requests for approval in the last message."""
        last = self.messages[-1]
        parts = last.parts if last.role == "assistant" and self.trigger == "submit-message" else []
        return [part.approval for part in parts if part.state == "approval-responded" and part.approval]


@router.post(
    "/chat",
    response_class=Response,
    responses=described.EVENTS | described.sentences(described.BODY | described.NOT_FOUND | described.CONFLICT),
)
async def chat(
    body: PostedChat,
    engine: Engine,
    sender: Sender,
    starting: Starting,
    request: Request,
    version: AskedVersion = VERSION,
) -> Response:
    """Begin a turn with the user's message, answer one again, or go on with one whose calls were approved or refused;
    and stream what follows as a UI message stream."""
    slot = await engine.consumption.stream(sender.subject)
    try:
        session_id = await engine.sessions.named(sender.subject, PROTOCOL, body.id)
        if answered := body.answered:
            part = Part(answered={asked_for(each.id)[0] for each in answered})
            turn_id = await _answered(body, session_id, engine, sender)
            about_turn(request, turn_id, session_id)
        else:
            part = WHOLE
            turn_id = await _sent(body, session_id, engine, sender, starting, request)
        turn = _Turn(turn_id, session_id, part)
        return await _stream(turn, engine, sender.subject, version, slot.release)
    except BaseException:
        await slot.release()
        raise


@router.get(
    "/chat/{chat_id}/stream",
    response_class=Response,
    responses=described.EVENTS | described.empty(HTTPStatus.NO_CONTENT),
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


@router.post("/chat/{chat_id}/stop", status_code=HTTPStatus.ACCEPTED, responses=described.empty(HTTPStatus.NO_CONTENT))
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
    batches = await turns.batches_of(turn.turn_id, engine, subject)
    if batches is None:
        raise TurnNotFoundError(f"there is no turn {turn.turn_id}")
    return stream_of(engine.streams, batches, AiSdkEncoder(version), HEADERS, turn.part, on_end=on_end)


async def _running(chat_id: str, engine: Services, subject: str) -> _Turn | None:
    session_id = await engine.sessions.find_named(subject, PROTOCOL, chat_id)
    if session_id is None:
        return None
    running = await engine.archive.transcript(subject, session_id, limit=1)
    turn_id = running.session.running_turn_id
    return _Turn(turn_id, session_id) if turn_id else None


async def _answered(body: PostedChat, session_id: str, engine: Services, sender: Principal) -> str:
    """Commit what the user has said to requests for approval. Returns the turn.

    A decision that was made before stands, and the stream shows it. Raises as `Approvals.decide`.
    """
    turn_id = body.messages[-1].id
    try:
        await engine.archive.turn(sender.subject, turn_id)
    except TurnNotFoundError:  # the page has given its message another id
        transcript = await engine.archive.transcript(sender.subject, session_id, limit=1)
        turn_id = transcript.session.running_turn_id or turn_id
    for each in body.answered:
        call, question_hash = asked_for(each.id)
        given: Given = Refuse(each.reason.strip(), key_id=sender.key_id)
        if each.approved:
            given = Approve(question_hash, None, key_id=sender.key_id)
        with suppress(ApprovalDecidedError, ApprovalExpiredError):
            await engine.approvals.decide(sender.subject, turn_id, call, given, sender.roles)
    return turn_id


async def _sent(
    body: PostedChat,
    session_id: str,
    engine: Services,
    sender: Principal,
    starting: StartingRequest,
    request: Request,
) -> str:
    """Begin a turn, or let its message wait behind the one that runs. Returns its id. Raises as `turns.sent_turn`."""
    own = {"onBusy": "queue", "onOpenQuestion": "decline", "model": body.model, "toolMode": body.tool_mode}
    native = TurnRequest.model_validate(own | await _question(body, session_id, engine, sender.subject))
    native.tools = body.tools
    return (await turns.sent_turn(native, session_id, engine, sender, starting, request)).turn_id


async def _question(body: PostedChat, session_id: str, engine: Services, subject: str) -> dict[str, Any]:
    """What is asked, in fields of a native request."""
    last = body.messages[-1]
    if body.trigger == "regenerate-message":
        transcript = await engine.archive.transcript(subject, session_id, limit=1)
        return {"regenerateOf": body.message_id or transcript.session.leaf_turn_id or ""}
    if last.role != "user":
        raise _refused("messages", "the last message must be the user's, or have an answer to a request for approval")
    if any(part.type == "file" for part in last.parts):
        raise _refused("messages", "files cannot be sent: leave them out")
    text = "\n\n".join(part.text for part in last.parts if part.type == "text")
    if not text.strip():
        raise _refused("messages", "the last message has no text")
    if body.message_id != last.id:
        return {"message": text}
    # An edited message: it follows the answer before it, in another branch.
    answers = [each.id for each in body.messages if each.role == "assistant"]
    return {"message": text, "parentTurnId": answers[-1] if answers else ""}


def _refused(field: str, why: str) -> ProblemError:
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", why, field=field)
