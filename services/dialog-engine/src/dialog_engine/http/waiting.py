"""Routes of messages that wait for the turns before them, and the events of one until its turn begins."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request

from dialog_engine.chat.archive import TurnRecord
from dialog_engine.chat.events import Batch, Cursor, Frame, encode
from dialog_engine.chat.waiting_messages import WaitingMessage
from dialog_engine.errors import SentBeforeError, StorageUnavailableError, TurnNotFoundError
from dialog_engine.http import described, sse, turn_views
from dialog_engine.http.bodies import Body, Text, check_length
from dialog_engine.http.repetition import Starting
from dialog_engine.http.requests import Engine, Sender, Subject, large_answer
from dialog_engine.http.responses import about_turn
from dialog_engine.http.services import Services
from dialog_engine.identity.principal import Principal
from dialog_engine.model import Turn, Withdrawn

WITHDRAWN_AT = Cursor(0, 1)
"""The id of the only event of a message that was withdrawn: before those of every turn."""

router = APIRouter(prefix="/v1", tags=["turns"])
_ANSWERS = described.NOT_FOUND | described.CONFLICT


class Edit(Body):
    """What replaces a message that waits."""

    message: Text


@router.patch("/turns/{turn_id}", responses=described.BODY | _ANSWERS)
async def edit(turn_id: str, body: Edit, engine: Engine, sender: Sender, request: Request) -> dict[str, Any]:
    """Replace the text of a message that waits; 409 when its turn has begun."""
    check_length(body.message, engine.max_message_chars)
    await engine.turns.queue.store.edit(_by(sender, turn_id), body.message)
    return await _view(engine, sender.subject, turn_id, request)


@router.delete("/turns/{turn_id}", responses=_ANSWERS)
async def withdraw(turn_id: str, engine: Engine, sender: Sender, request: Request) -> dict[str, Any]:
    """Withdraw a message that waits; 409 when its turn has begun."""
    await withdrawn(engine, sender, turn_id)
    return await _view(engine, sender.subject, turn_id, request)


@router.post("/turns/{turn_id}/send", status_code=HTTPStatus.ACCEPTED, responses=_ANSWERS)
async def send(
    turn_id: str,
    engine: Engine,
    sender: Sender,
    request: Request,
    starting: Starting,
    stop: Annotated[bool, Query(description="Stop the turn that runs in its session now.")] = False,
) -> dict[str, Any]:
    """Send a message before all others that wait in its session, also one that is held: it begins when no turn runs
    there, whatever becomes of that one."""
    with suppress(SentBeforeError):
        session_id, running = await engine.turns.queue.store.send(_by(sender, turn_id), starting, stop=stop)
        if stop and running:
            await engine.turns.cancel(running)
        await engine.turns.begin_next(session_id)
    try:
        return await _view(engine, sender.subject, turn_id, request)
    except TurnNotFoundError:
        record = await engine.archive.turn(sender.subject, turn_id)
        about_turn(request, turn_id, record.session_id)
        return turn_views.turn(record)


@router.get("/me/pending", tags=["sessions"], dependencies=[Depends(large_answer)])
async def pending(engine: Engine, subject: Subject) -> dict[str, Any]:
    """What waits for the subject in all its sessions: calls for its approval, or for the results of its programs,
    questions of servers, and its messages."""
    approvals = await engine.pending_approvals(subject, turn_views.MAX_PENDING)
    messages = await engine.turns.queue.store.of_subject(subject, turn_views.MAX_PENDING)
    questions = await engine.pending_questions(subject, turn_views.MAX_PENDING)
    client_calls = await engine.pending_client_calls(subject, turn_views.MAX_PENDING)
    return turn_views.pending(approvals, messages, questions, client_calls)


async def withdrawn(engine: Services, sender: Principal, turn_id: str) -> None:
    """Withdraw a message, after which another one may begin. Raises the errors of `WaitingStore.withdraw`."""
    await engine.turns.begin_next(await engine.turns.queue.withdraw(sender.subject, turn_id, key_id=sender.key_id))


async def found(engine: Services, subject: str, turn_id: str) -> WaitingMessage:
    """The message that waits, or was withdrawn. Raises TurnNotFoundError."""
    message = await engine.turns.queue.store.find(subject, turn_id)
    if message is None:
        raise TurnNotFoundError(f"there is no turn {turn_id}")
    return message


async def record_of(engine: Services, subject: str, turn_id: str) -> TurnRecord | WaitingMessage:
    """The turn, or the message that waits to become it. Raises TurnNotFoundError."""
    try:
        return await engine.archive.turn(subject, turn_id)
    except TurnNotFoundError:
        with suppress(TurnNotFoundError):
            return await found(engine, subject, turn_id)
        return await engine.archive.turn(subject, turn_id)  # it has begun in between


async def of_waiting(engine: Services, subject: str, turn: Turn, after: Cursor) -> AsyncGenerator[Batch]:
    """Nothing until the turn has begun, then its events; one event when the message was withdrawn or deleted.

    The stream ends early when the engine shuts down, or the database is away: the client reconnects.
    """
    try:
        with engine.readers.reading_message(turn):
            waits = True
            async with aclosing(engine.turns.queue.follow(turn.session_id, turn.turn_id)) as looks:
                async for _ in looks:
                    if not (waits := bool(await engine.turns.queue.store.waiting([turn.turn_id]))):
                        break
            if waits:
                return
        record = await engine.archive.turn(subject, turn.turn_id)
    except TurnNotFoundError:
        name, data = encode(Withdrawn(turn.turn_id))
        yield [Frame(str(WITHDRAWN_AT), name, msgspec.json.encode(data).decode())]
        return
    except StorageUnavailableError:
        return
    running = record.status == "running"
    events = sse.of_running(engine, subject, turn.turn_id, after) if running else sse.of_ended(engine, record, after)
    async with aclosing(events):
        async for batch in events:
            yield batch


async def _view(engine: Services, subject: str, turn_id: str, request: Request) -> dict[str, Any]:
    message = await found(engine, subject, turn_id)
    about_turn(request, turn_id, message.turn.session_id)
    return turn_views.waiting(message)


def _by(sender: Principal, turn_id: str) -> Turn:
    """The turn of a message as this sender sends it."""
    return Turn(
        turn_id,
        "",
        sender.subject,
        roles=sender.roles,
        key_id=sender.key_id,
        credential=sender.credential,
        expires_at=sender.expires_at,
    )
