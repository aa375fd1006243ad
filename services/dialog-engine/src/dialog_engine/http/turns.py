"""Routes of turns: start one, follow it, read it, cancel it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from dialog_engine.chat.archive import TurnRecord
from dialog_engine.chat.events import START, WITHDRAWN, Batch, Cursor
from dialog_engine.chat.requests import StartingRequest
from dialog_engine.chat.waiting_messages import WAITING, WaitingMessage
from dialog_engine.errors import SentBeforeError, TurnRunningError, TurnStartedError
from dialog_engine.http import described, plain, sse, turn_views, waiting
from dialog_engine.http.bodies import WhenLeft
from dialog_engine.http.client_calls import with_tools
from dialog_engine.http.messages import ChatRequest, TurnRequest, asked
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.repetition import Starting
from dialog_engine.http.requests import Engine, Sender, Subject, traceparent, wants_document
from dialog_engine.http.responses import about_turn
from dialog_engine.http.services import Services
from dialog_engine.http.sse import EventStream
from dialog_engine.identity.principal import Principal
from dialog_engine.model import Brought, Choice, Leaving, Turn

CANCEL_SECONDS = 10.0
"""How long a cancel request waits for the end of its turn, which cannot be stored while the database is away."""

router = APIRouter(prefix="/v1", tags=["turns"])


@router.post(
    "/chat",
    response_class=Response,
    responses=described.ANSWER
    | described.QUEUED
    | described.empty(HTTPStatus.NO_CONTENT)
    | described.BODY
    | described.NOT_FOUND
    | described.CONFLICT,
)
async def chat(
    body: ChatRequest,
    engine: Engine,
    sender: Sender,
    starting: Starting,
    request: Request,
    last_event_id: Annotated[
        str | None, Header(description="Of a request that is repeated: the last event that was received.")
    ] = None,
    x_on_disconnect: WhenLeft = None,
) -> Response:
    """Start a turn and stream its events, or answer with one document when it has ended or waits for its user."""
    seen = _cursor("Last-Event-ID", last_event_id) or START
    slot = await engine.consumption.stream(sender.subject)
    try:
        leaving = engine.leaving.of(x_on_disconnect, usually="continue")
        sent = await sent_turn(body, body.session_id, engine, sender, starting, request, leaving=leaving)
        if wants_document(request, body.stream):
            if sent.status not in (WAITING, WITHDRAWN):
                return plain.PlainAnswer(engine, sender.subject, sent.turn_id, on_end=slot.release)
            await slot.release()
            return JSONResponse(_accepted(sent), HTTPStatus.ACCEPTED)
        events = await batches_of(sent.turn_id, engine, sender.subject, seen if sent.before else START)
    except BaseException:
        await slot.release()
        raise
    if events is None:
        await slot.release()
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return EventStream(engine.streams, events, on_end=slot.release)


@router.post(
    "/sessions/{session_id}/turns",
    status_code=HTTPStatus.ACCEPTED,
    responses=described.BODY | described.NOT_FOUND | described.CONFLICT,
)
async def start_turn(
    session_id: str, body: TurnRequest, engine: Engine, sender: Sender, starting: Starting, request: Request
) -> dict[str, str]:
    """Start a turn, or let its message wait; its events are at `eventsUrl`."""
    return _accepted(await sent_turn(body, session_id, engine, sender, starting, request))


def _accepted(sent: "SentTurn") -> dict[str, str]:
    return {
        "sessionId": sent.session_id,
        "turnId": sent.turn_id,
        "status": sent.status,
        "eventsUrl": f"/v1/turns/{sent.turn_id}/events",
    }


@router.get(
    "/turns/{turn_id}/events",
    response_class=Response,
    responses=described.ANSWER
    | described.empty(HTTPStatus.NO_CONTENT)
    | described.problems((HTTPStatus.BAD_REQUEST,))
    | described.NOT_FOUND,
)
async def events(
    turn_id: str,
    engine: Engine,
    subject: Subject,
    request: Request,
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[str | None, Query()] = None,
) -> Response:
    """The turn's events, from the start or after the given one; or, as JSON, what it has come to at its end."""
    cursor = _cursor("Last-Event-ID", last_event_id) or _cursor("after", after) or START
    found = await _found(engine, subject, turn_id)
    about_turn(request, turn_id, _session_of(found))
    as_json = wants_document(request)
    if as_json and isinstance(found, WaitingMessage):
        return JSONResponse(turn_views.waiting(found))
    slot = await engine.consumption.stream(subject)
    if as_json:
        return plain.PlainAnswer(engine, subject, turn_id, on_end=slot.release)
    try:
        batches = await _batches(turn_id, found, engine, subject, cursor)
    except BaseException:
        await slot.release()
        raise
    if batches is None:
        await slot.release()
        return Response(status_code=HTTPStatus.NO_CONTENT)
    return EventStream(engine.streams, batches, on_end=slot.release)


Found = Turn | TurnRecord | WaitingMessage
"""A turn that this engine runs, any other one, or the message that waits to become it."""


async def _found(engine: Services, subject: str, turn_id: str) -> Found:
    """The database is not asked about a turn that runs on this engine. Raises TurnNotFoundError."""
    running = engine.frames.running(turn_id)
    return running if running and running.subject == subject else await waiting.record_of(engine, subject, turn_id)


def _session_of(found: Found) -> str:
    return (found.turn if isinstance(found, WaitingMessage) else found).session_id


async def batches_of(
    turn_id: str, engine: Services, subject: str, after: Cursor = START
) -> AsyncGenerator[Batch] | None:
    """The events of a turn, or of the message that waits to become it. Raises TurnNotFoundError."""
    return await _batches(turn_id, await _found(engine, subject, turn_id), engine, subject, after)


async def _batches(
    turn_id: str, found: Found, engine: Services, subject: str, cursor: Cursor
) -> AsyncGenerator[Batch] | None:
    """The events after the cursor; None when there are no more."""
    if isinstance(found, WaitingMessage):
        seen = found.withdrawn and cursor >= waiting.WITHDRAWN_AT
        return None if seen else waiting.of_waiting(engine, subject, found.turn, cursor)
    if isinstance(found, TurnRecord) and found.status != plain.RUNNING:
        rest = _in_a_place(engine, subject, sse.of_ended(engine, found, cursor))
        first = await anext(rest, None)
        return None if first is None else _with_first(first, rest)
    return sse.of_running(engine, subject, turn_id, cursor)


@router.get("/turns/{turn_id}", responses=described.NOT_FOUND)
async def turn(turn_id: str, engine: Engine, subject: Subject, request: Request) -> dict[str, Any]:
    """The state of a turn, or of the message that waits to become it."""
    record = await waiting.record_of(engine, subject, turn_id)
    about_turn(request, turn_id, _session_of(record))
    return turn_views.waiting(record) if isinstance(record, WaitingMessage) else turn_views.turn(record)


@router.post("/turns/{turn_id}/cancel", status_code=HTTPStatus.ACCEPTED, responses=described.NOT_FOUND)
async def cancel(turn_id: str, engine: Engine, sender: Sender, request: Request) -> dict[str, str]:
    """Stop a turn: the model's stream, and its tool calls. A message that waits is withdrawn."""
    subject = sender.subject
    with contextlib.suppress(TurnStartedError):
        record = await waiting.record_of(engine, subject, turn_id)
        about_turn(request, turn_id, _session_of(record))
        if isinstance(record, WaitingMessage):
            await waiting.withdrawn(engine, sender, turn_id)
            return {"turnId": turn_id, "status": WITHDRAWN}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_SECONDS):
            await engine.turns.cancel(turn_id)
    return {"turnId": turn_id, "status": (await engine.archive.turn(subject, turn_id)).status}


@dataclass(frozen=True, slots=True)
class SentTurn:
    """An accepted message. `status` as in `GET /v1/turns/{id}`. `before`: an earlier request has sent it."""

    turn_id: str
    session_id: str
    status: str
    before: bool = False


async def sent_turn(
    body: TurnRequest,
    session_id: str | None,
    engine: Services,
    sender: Principal,
    starting: StartingRequest,
    request: Request,
    brought: Brought | None = None,
    leaving: Leaving | None = None,
) -> SentTurn:
    """Start the turn and count it, or let its message wait; the turn of the request before if this one repeats it.

    Raises:
        ProblemError, EngineError: from `asked` and `with_tools`, or the choice is not allowed.
        EngineError: from RunningTurns.start; LimitExceededError; TurnNotFoundError: the turn of a message that was sent
            before is deleted.
    """
    question = await asked(body, session_id, engine, sender.subject)
    is_chosen = body.model is not None or body.tool_mode is not None
    choice = engine.choices.made(body.model, body.tool_mode) if is_chosen else Choice()
    if body.tools is not None:
        choice = replace(choice, tools=body.tools.choice())
    if body.client_tools or (brought and brought.tools):
        own = brought or Brought(own_api=True)
        brought = with_tools(body.client_tools or (), own, engine, sender, choice.tools)

    async def start() -> Turn:
        return await engine.turns.start(
            sender.subject,
            session_id,
            question.text,
            traceparent(request),
            queue=body.on_busy == "queue",
            decline=engine.parked.decline if body.on_open_question == "decline" else None,
            parent=question.parent_turn_id,
            choice=choice,
            roles=sender.roles,
            key_id=sender.key_id,
            credential=sender.credential,
            expires_at=sender.expires_at,
            request=replace(starting, message_id=body.client_message_id or ""),
            brought=question.brought if brought is None else brought,
            leaving=leaving,
        )

    try:
        if starting.key or starting.repeated:  # before limits are asked, which the request before may have used up
            await engine.requests.check_new(sender.subject, starting)
        turn = await engine.consumption.counted_turn(sender.subject, start, engine.turns.when_ended)
    except TurnRunningError as error:
        about_turn(request, error.turn_id, session_id or "")
        raise await engine.parked.refusal(error) from None
    except SentBeforeError as error:
        record = await waiting.record_of(engine, sender.subject, error.turn_id)
        about_turn(request, error.turn_id, error.session_id)
        return SentTurn(error.turn_id, error.session_id, record.status, before=True)
    about_turn(request, turn.turn_id, turn.session_id)
    if turn.waits:
        engine.readers.expect(turn)
    return SentTurn(turn.turn_id, turn.session_id, WAITING if turn.waits else plain.RUNNING)


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
