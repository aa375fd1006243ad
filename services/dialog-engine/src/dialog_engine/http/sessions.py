"""The routes of sessions."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from dialog_engine.errors import TurnRunningError
from dialog_engine.http import described, turn_views, views
from dialog_engine.http.bodies import Body, ToolsRequest
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.repetition import Starting
from dialog_engine.http.requests import Engine, Sender, Subject, large_answer
from dialog_engine.http.services import Services
from dialog_engine.identity.principal import Principal
from dialog_engine.personal_data.service import Left

STOP_SECONDS = 10.0
"""How long a deletion waits for the ends of turns that it stops."""

T = TypeVar("T")

router = APIRouter(prefix="/v1", tags=["sessions"])


@router.post("/sessions", status_code=HTTPStatus.CREATED)
async def create(engine: Engine, subject: Subject, starting: Starting) -> dict[str, str]:
    """Create an empty session."""
    return {"sessionId": await engine.sessions.create(subject, starting)}


@router.get("/sessions")
async def sessions(
    engine: Engine,
    subject: Subject,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[
        str | None, Query(description="The `nextCursor` of the page before. A time lists what changed before it.")
    ] = None,
) -> dict[str, Any]:
    """The subject's sessions, those changed last first. `nextCursor` is the `before` of the next page, or null."""
    place = None if before is None else _place(views.session_place, before)
    return views.sessions(await engine.sessions.list(subject, limit=limit + 1, before=place), limit)


@router.get("/sessions/{session_id}/messages", responses=described.NOT_FOUND, dependencies=[Depends(large_answer)])
async def messages(
    session_id: str,
    engine: Engine,
    subject: Subject,
    limit: Annotated[int, Query(ge=1, le=200)] = 100,
    before: Annotated[str | None, Query(description="The `nextCursor` of the page before.")] = None,
) -> dict[str, Any]:
    """The newest messages of the path that is shown, oldest first, and the state of their turns, each with its
    `siblings`: all turns that follow the same one. `nextCursor` is the `before` of the page with the older ones, or
    null. A page begins with a message of the user, unless it is a part of one turn, and has fewer messages than `limit`
    when they are large.
    """
    place = None if before is None else _place(views.message_place, before)
    found = await engine.archive.transcript(subject, session_id, limit=limit, before=place)
    if before is not None and not found.page.messages:
        raise _invalid("before", "must be the nextCursor of a page of this session: nothing is before this place")
    return views.transcript(found)


class SessionRequest(Body):
    """Settings of a session."""

    tools: Annotated[
        ToolsRequest | None,
        Field(description="The tools that its messages may use from now on, unless they say otherwise. Null: all."),
    ]


@router.patch("/sessions/{session_id}", responses=described.BODY | described.NOT_FOUND)
async def change(session_id: str, body: SessionRequest, engine: Engine, subject: Subject) -> dict[str, Any]:
    """Choose the tools of a session. Messages that were sent before keep what they had."""
    tools = body.tools.choice() if body.tools else None
    await engine.sessions.choose_tools(subject, session_id, tools)
    return {"sessionId": session_id, "tools": turn_views.tool_choice(tools)}


class LeafRequest(Body):
    """Which path of a session is shown."""

    turn_id: Annotated[str, Field(description="A turn of this path.")]


@router.put("/sessions/{session_id}/leaf", responses=described.BODY | described.NOT_FOUND)
async def move_leaf(session_id: str, body: LeafRequest, engine: Engine, subject: Subject) -> dict[str, str]:
    """Show another path: the one to this turn, and on from it by the newest turn at each fork. A running turn goes on.

    The answer has the last turn of the path, which the next message follows.
    """
    leaf = await engine.sessions.move_leaf(subject, session_id, body.turn_id)
    return {"sessionId": session_id, "leafTurnId": leaf}


@router.delete(
    "/sessions/{session_id}",
    status_code=HTTPStatus.ACCEPTED,
    responses=described.ERASURE | described.NOT_FOUND | described.CONFLICT,
)
async def delete(
    session_id: str,
    engine: Engine,
    sender: Sender,
    stop: Annotated[
        bool, Query(description="Stop its running turn first, which otherwise is answered with 409.")
    ] = False,
) -> dict[str, Any]:
    """Delete a session with all its messages. What it left in Redis is erased within seconds, or when Redis is back.

    The answer is what is left to do for the subject. Until nothing is left of the session, a repetition is answered in
    the same way, and then with 404. Backups keep what they have.
    """
    if stop:
        return views.erasure(await stopped_and_deleted(session_id, engine, sender))
    return views.erasure(await engine.personal_data.delete(sender.subject, session_id, key_id=sender.key_id))


async def stopped_and_deleted(session_id: str, engine: Services, sender: Principal) -> Left:
    """Stop the turn that runs in the session, and those that begin meanwhile, until the session can be deleted.

    Raises:
        TurnRunningError: a turn does not end within STOP_SECONDS, as when the database cannot store its end.
        EngineError: from `Erasures.delete` and `RunningTurns.cancel`.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + STOP_SECONDS
    while True:
        try:
            return await engine.personal_data.delete(sender.subject, session_id, key_id=sender.key_id)
        except TurnRunningError as error:
            try:
                async with asyncio.timeout_at(ends_at):
                    await engine.turns.cancel(error.turn_id)
            except TimeoutError:
                raise error from None


def _place(parse: Callable[[str], T], before: str) -> T:
    try:
        return parse(before)
    except ValueError as error:
        raise _invalid("before", str(error)) from None


def _invalid(field: str, why: str) -> ProblemError:
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", why, field=field)
