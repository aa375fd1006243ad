"""Turns: begin one, follow it, look at it, stop it."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dialog_engine.chat.events import START, Batch, Cursor
from dialog_engine.http import snapshot, views
from dialog_engine.http.auth import Subject
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.services import Engine, Services
from dialog_engine.http.sse import EventStream
from dialog_engine.model import Turn

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
CANCEL_SECONDS = 10.0
"""How long the end of a cancelled turn is waited for: with the disk full it cannot be written down."""

router = APIRouter(prefix="/v1", tags=["turns"])


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def whole_characters(text: str) -> str:
    """`text`, if it is Unicode. Raises ValueError."""
    # JSON can spell half of a surrogate pair; nothing that stores or sends text can.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("must be Unicode text: it holds half a character (a lone surrogate)")
    return text


_Text = Annotated[str, AfterValidator(whole_characters)]


class Body(BaseModel):
    """A body of JSON: what is not expected in it is refused."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, strict=True)


class TurnRequest(Body):
    """A user's message."""

    message: Annotated[_Text, AfterValidator(_not_blank), Field(description="What the user says.")]
    on_busy: Annotated[
        Literal["refuse", "queue"], Field(description="While another turn of the session runs: 409, or wait.")
    ] = "refuse"
    model: Annotated[_Text, Field(description="Which model answers: a name from `GET /v1/models`.")] | None = None
    tool_mode: (
        Annotated[_Text, Field(description="How it calls tools: one of `toolModes` from there, if any.")] | None
    ) = None


class ChatRequest(TurnRequest):
    """A user's message, in a session or in a new one."""

    session_id: Annotated[str, Field(min_length=1, max_length=100), AfterValidator(whole_characters)] | None = None


@router.post("/chat")
async def chat(body: ChatRequest, engine: Engine, subject: Subject, request: Request) -> Response:
    """Begin a turn and stream its events."""
    _check_length(body.message, engine)
    turn = await _begun(body, body.session_id, engine, subject, request)
    headers = {"X-Session-Id": turn.session_id, "X-Turn-Id": turn.turn_id}
    return EventStream(engine.streams, snapshot.of_running(engine, subject, turn.turn_id, START), headers)


@router.post("/sessions/{session_id}/turns", status_code=HTTPStatus.ACCEPTED)
async def begin_turn(
    session_id: str, body: TurnRequest, engine: Engine, subject: Subject, request: Request
) -> dict[str, str]:
    """Begin a turn; its events can be had from `eventsUrl`."""
    _check_length(body.message, engine)
    turn = await _begun(body, session_id, engine, subject, request)
    return {
        "sessionId": turn.session_id,
        "turnId": turn.turn_id,
        "eventsUrl": f"/v1/turns/{turn.turn_id}/events",
    }


@router.get("/turns/{turn_id}/events")
async def events(
    turn_id: str,
    engine: Engine,
    subject: Subject,
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[str | None, Query()] = None,
) -> Response:
    """The turn's events, from the start or after the last one that was seen; live while it runs."""
    cursor = _cursor("Last-Event-ID", last_event_id) or _cursor("after", after) or START
    running = engine.frames.running(turn_id)
    if running is not None and running.subject == subject:
        return EventStream(
            engine.streams, snapshot.of_running(engine, subject, turn_id, cursor)
        )  # most are here: nothing is looked up
    record = await engine.archive.turn(subject, turn_id)
    if record.status == "running":
        return EventStream(engine.streams, snapshot.of_running(engine, subject, turn_id, cursor))
    rest = snapshot.of_ended(engine, subject, record, cursor)
    first = await anext(rest, None)
    return (
        Response(status_code=HTTPStatus.NO_CONTENT)
        if first is None
        else EventStream(engine.streams, _with_first(first, rest))
    )


@router.get("/turns/{turn_id}")
async def turn(turn_id: str, engine: Engine, subject: Subject) -> dict[str, object]:
    """How a turn is doing, or how it ended."""
    return views.turn(await engine.archive.turn(subject, turn_id))


@router.post("/turns/{turn_id}/cancel", status_code=HTTPStatus.ACCEPTED)
async def cancel(turn_id: str, engine: Engine, subject: Subject) -> dict[str, str]:
    """Stop a turn: the model's stream, and every tool call of it."""
    await engine.archive.turn(subject, turn_id)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_SECONDS):
            await engine.turns.cancel(turn_id)
    return {"turnId": turn_id, "status": (await engine.archive.turn(subject, turn_id)).status}


@router.get("/turns/{turn_id}/tool-calls/{correlation_id}/content/{number}")
async def content(turn_id: str, correlation_id: str, number: int, engine: Engine, subject: Subject) -> Response:
    """An image or a sound of a tool's result."""
    outcome = await engine.archive.outcome(subject, turn_id, correlation_id)
    media = views.media(outcome, number)
    if media is None:
        detail = f"there is no content {number} in the result of call {correlation_id}"
        raise ProblemError(HTTPStatus.NOT_FOUND, "CONTENT_NOT_FOUND", detail, field="number")
    return media


@router.get("/turns/{turn_id}/tool-calls/{correlation_id}/text")
async def text(turn_id: str, correlation_id: str, engine: Engine, subject: Subject) -> Response:
    """All the text of a tool's result; what cannot be had any more is said in its place."""
    outcome = await engine.archive.outcome(subject, turn_id, correlation_id)
    if outcome is None:
        detail = f"call {correlation_id} has no result"
        raise ProblemError(HTTPStatus.NOT_FOUND, "CONTENT_NOT_FOUND", detail, field="correlation_id")
    return views.result_text(outcome, await engine.archive.whole(subject, turn_id, correlation_id))


async def _begun(body: TurnRequest, session_id: str | None, engine: Services, subject: str, request: Request) -> Turn:
    """Begin the turn. A message that waits for another turn is withdrawn when its client goes away."""
    traceparent = _traceparent(request)
    choice = engine.choices.made(body.model, body.tool_mode)
    if body.on_busy == "refuse":
        return await engine.turns.start(subject, session_id, body.message, traceparent, choice=choice)
    work = engine.turns.start(subject, session_id, body.message, traceparent, queue=True, choice=choice)
    waiting = asyncio.create_task(work, name="a message that waits")
    client = asyncio.create_task(_gone(request), name="the client of a message that waits")
    try:
        await asyncio.wait({waiting, client}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        client.cancel()
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])
    if waiting.cancelled():
        raise ProblemError(HTTPStatus.CONFLICT, "CLIENT_GONE", "the client went away before its message's turn came")
    return waiting.result()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check_length(message: str, engine: Services) -> None:
    if len(message) > engine.max_message_chars:
        raise ProblemError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "MESSAGE_TOO_LONG",
            f"may have {engine.max_message_chars} characters at most, this one has {len(message)}",
            field="message",
        )


def _traceparent(request: Request) -> str | None:
    """The caller's trace (W3C Trace Context), if the header is one."""
    value = request.headers.get("traceparent", "")
    return value if _TRACEPARENT.fullmatch(value) else None


def _cursor(field: str, text: str | None) -> Cursor | None:
    if not text:
        return None
    try:
        return Cursor.parse(text)
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, "INVALID_CURSOR", str(error), field=field) from None


async def _with_first(first: Batch, rest: AsyncGenerator[Batch]) -> AsyncGenerator[Batch]:
    async with contextlib.aclosing(rest):
        yield first
        async for batch in rest:
            yield batch
