"""Routes of turns: start one, follow it, read it, cancel it."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dialog_engine.chat.archive import Asked
from dialog_engine.chat.events import START, Batch, Cursor
from dialog_engine.http import described, sse, views
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.requests import Engine, Sender, Subject
from dialog_engine.http.services import Services
from dialog_engine.http.sse import EventStream
from dialog_engine.identity.principal import Principal
from dialog_engine.model import Choice, Turn

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
CANCEL_SECONDS = 10.0
"""How long a cancel request waits for the end of its turn, which cannot be stored while the database is away."""

router = APIRouter(prefix="/v1", tags=["turns"])


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def unicode_text(text: str) -> str:
    """The text, if it can be stored and sent. Raises ValueError."""
    # JSON can spell half of a surrogate pair; nothing that stores or sends text can. PostgreSQL cannot store U+0000.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("must be Unicode text: it holds half a character (a lone surrogate)")
    if "\0" in text:
        raise ValueError("must not contain the character U+0000: remove it")
    return text


_Text = Annotated[str, AfterValidator(unicode_text)]


class Body(BaseModel):
    """A JSON body; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, strict=True)


class TurnRequest(Body):
    """A user's message."""

    message: Annotated[_Text, AfterValidator(_not_blank), Field(description="The user's text.")] | None = None
    parent_turn_id: (
        Annotated[
            _Text,
            Field(
                description="The turn that the message follows, instead of the last one that is shown: another branch"
                " of the conversation begins there. Empty: the message begins the conversation."
            ),
        ]
        | None
    ) = None
    regenerate_of: (
        Annotated[_Text, Field(description="A turn whose message is answered once more, in another branch.")] | None
    ) = None
    on_busy: Annotated[
        Literal["refuse", "queue"], Field(description="While another turn of the session runs: answer 409, or wait.")
    ] = "refuse"
    model: Annotated[_Text, Field(description="The model that answers: a name from `GET /v1/models`.")] | None = None
    tool_mode: (
        Annotated[_Text, Field(description="How the model calls tools: one of `toolModes` from there.")] | None
    ) = None


class ChatRequest(TurnRequest):
    """A user's message, in an existing session or in a new one."""

    session_id: Annotated[str, Field(min_length=1, max_length=100), AfterValidator(unicode_text)] | None = None


@router.post(
    "/chat",
    response_class=Response,
    responses=described.EVENTS | described.BODY | described.NOT_FOUND | described.CONFLICT,
)
async def chat(body: ChatRequest, engine: Engine, sender: Sender, request: Request) -> Response:
    """Start a turn and stream its events."""
    slot = await engine.consumption.stream(sender.subject)
    try:
        turn = await _started(body, body.session_id, engine, sender, request)
    except BaseException:
        await slot.release()
        raise
    headers = {"X-Session-Id": turn.session_id, "X-Turn-Id": turn.turn_id}
    events = sse.of_running(engine, sender.subject, turn.turn_id, START)
    return EventStream(engine.streams, events, headers, on_end=slot.release)


@router.post(
    "/sessions/{session_id}/turns",
    status_code=HTTPStatus.ACCEPTED,
    responses=described.BODY | described.NOT_FOUND | described.CONFLICT,
)
async def start_turn(
    session_id: str, body: TurnRequest, engine: Engine, sender: Sender, request: Request
) -> dict[str, str]:
    """Start a turn; its events are at `eventsUrl`."""
    turn = await _started(body, session_id, engine, sender, request)
    return {
        "sessionId": turn.session_id,
        "turnId": turn.turn_id,
        "eventsUrl": f"/v1/turns/{turn.turn_id}/events",
    }


@router.get(
    "/turns/{turn_id}/events",
    response_class=Response,
    responses=described.EVENTS
    | described.empty(HTTPStatus.NO_CONTENT)
    | described.problems((HTTPStatus.BAD_REQUEST,))
    | described.NOT_FOUND,
)
async def events(
    turn_id: str,
    engine: Engine,
    subject: Subject,
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[str | None, Query()] = None,
) -> Response:
    """The turn's events, from the start or after the given event; live while the turn runs."""
    cursor = _cursor("Last-Event-ID", last_event_id) or _cursor("after", after) or START
    slot = await engine.consumption.stream(subject)
    try:
        batches = await _batches(turn_id, engine, subject, cursor)
    except BaseException:
        await slot.release()
        raise
    if batches is None:
        await slot.release()
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return EventStream(engine.streams, batches, on_end=slot.release)


async def _batches(turn_id: str, engine: Services, subject: str, cursor: Cursor) -> AsyncGenerator[Batch] | None:
    """The events after the cursor; None when the turn has ended and there are none. Raises TurnNotFoundError."""
    running = engine.frames.running(turn_id)
    # The database is not asked about a turn that runs on this engine.
    if running is None or running.subject != subject:
        record = await engine.archive.turn(subject, turn_id)
        if record.status != "running":
            rest = _in_a_place(engine, subject, sse.of_ended(engine, record, cursor))
            first = await anext(rest, None)
            return None if first is None else _with_first(first, rest)
    return sse.of_running(engine, subject, turn_id, cursor)


@router.get("/turns/{turn_id}", responses=described.NOT_FOUND)
async def turn(turn_id: str, engine: Engine, subject: Subject) -> dict[str, object]:
    """The state of a turn."""
    return views.turn(await engine.archive.turn(subject, turn_id))


@router.post("/turns/{turn_id}/cancel", status_code=HTTPStatus.ACCEPTED, responses=described.NOT_FOUND)
async def cancel(turn_id: str, engine: Engine, subject: Subject) -> dict[str, str]:
    """Stop a turn: the model's stream, and its tool calls."""
    await engine.archive.turn(subject, turn_id)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_SECONDS):
            await engine.turns.cancel(turn_id)
    return {"turnId": turn_id, "status": (await engine.archive.turn(subject, turn_id)).status}


async def _started(
    body: TurnRequest, session_id: str | None, engine: Services, sender: Principal, request: Request
) -> Turn:
    """Start the turn, and count it. Raises LimitExceededError, and what `_accepted` raises."""

    async def start() -> Turn:
        return await _accepted(body, session_id, engine, sender, request)

    return await engine.consumption.counted_turn(sender.subject, start, engine.turns.when_ended)


async def _accepted(
    body: TurnRequest, session_id: str | None, engine: Services, sender: Principal, request: Request
) -> Turn:
    """Start the turn. A queued message is withdrawn when its client disconnects.

    Raises:
        ProblemError: from `_asked`; the choice is not allowed, or the client has disconnected.
        EngineError: from RunningTurns.start.
    """
    asked = await _asked(body, session_id, engine, sender.subject)
    traceparent = _traceparent(request)
    is_chosen = body.model is not None or body.tool_mode is not None
    choice = engine.choices.made(body.model, body.tool_mode) if is_chosen else Choice()
    queue = body.on_busy == "queue"
    start = engine.turns.start(
        sender.subject,
        session_id,
        asked.text,
        traceparent,
        queue=queue,
        parent=asked.parent_turn_id,
        choice=choice,
        roles=sender.roles,
        key_id=sender.key_id,
        credential=sender.credential,
    )
    if not queue:
        return await start
    queued = asyncio.create_task(start, name="queued message")
    disconnect = asyncio.create_task(_disconnected(request), name="queued message: client")
    try:
        await asyncio.wait({queued, disconnect}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnect.cancel()
        if not queued.done():
            queued.cancel()
            await asyncio.wait([queued])
    if queued.cancelled():
        raise ProblemError(HTTPStatus.CONFLICT, "CLIENT_GONE", "the client disconnected while its message was queued")
    return queued.result()


async def _asked(body: TurnRequest, session_id: str | None, engine: Services, subject: str) -> Asked:
    """The user's text, and the turn that it follows, if the request names it.

    Raises:
        ProblemError: the message is missing or too long, or fields do not go together.
        TurnNotFoundError: there is no turn to be answered again.
    """
    if session_id is None and (named := [*(body.model_fields_set & {"parent_turn_id", "regenerate_of"})]):
        raise _misplaced(to_camel(named[0]), "names a turn of a session: send its sessionId, or leave this out")
    if body.regenerate_of is not None and session_id is not None:
        for name in sorted(body.model_fields_set & {"message", "parent_turn_id"}):
            raise _misplaced(to_camel(name), "is that of the turn in regenerateOf: leave it out")
        return await engine.archive.question(subject, session_id, body.regenerate_of)
    if body.message is None:
        raise _misplaced("message", "is required")
    if len(body.message) > engine.max_message_chars:
        detail = f"the message has {len(body.message)} characters; {engine.max_message_chars} are allowed"
        raise ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "MESSAGE_TOO_LONG", detail, field="message")
    return Asked(body.message, body.parent_turn_id)


def _misplaced(field: str, why: str) -> ProblemError:
    errors = [{"field": field, "message": why}]
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", f"{field}: {why}", errors=errors)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _traceparent(request: Request) -> str | None:
    """The caller's trace (W3C Trace Context), if the header is well-formed."""
    value = request.headers.get("traceparent", "")
    return value if _TRACEPARENT.fullmatch(value) else None


def _cursor(field: str, text: str | None) -> Cursor | None:
    if not text:
        return None
    try:
        return Cursor.parse(text)
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "INVALID_CURSOR", str(error), field=field) from None


async def _in_a_place(engine: Services, subject: str, batches: AsyncGenerator[Batch]) -> AsyncGenerator[Batch]:
    """The batches of a turn that has ended. Each reader has read a part of its own from Redis or the database."""
    async with contextlib.aclosing(batches), engine.large_answers.place(subject):
        async for batch in batches:
            yield batch


async def _with_first(first: Batch, rest: AsyncGenerator[Batch]) -> AsyncGenerator[Batch]:
    async with contextlib.aclosing(rest):
        yield first
        async for batch in rest:
            yield batch
