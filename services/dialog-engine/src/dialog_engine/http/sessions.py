"""The routes of sessions."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query

from dialog_engine.http import described, views
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.services import Engine, Sender, Subject, large_answer

T = TypeVar("T")

router = APIRouter(prefix="/v1", tags=["sessions"])


@router.post("/sessions", status_code=HTTPStatus.CREATED)
async def create(engine: Engine, subject: Subject) -> dict[str, str]:
    """Create an empty session."""
    return {"sessionId": await engine.sessions.create(subject)}


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
    """The session's newest messages, oldest first, and the state of their turns. `nextCursor` is the `before` of the
    page with the older ones, or null. A page begins with a message of the user, unless it is a part of one turn, and
    has fewer messages than `limit` when they are large.
    """
    place = None if before is None else _place(views.message_place, before)
    return views.transcript(await engine.archive.transcript(subject, session_id, limit=limit, before=place))


@router.delete(
    "/sessions/{session_id}",
    status_code=HTTPStatus.ACCEPTED,
    responses=described.ERASURE | described.NOT_FOUND | described.CONFLICT,
)
async def delete(session_id: str, engine: Engine, sender: Sender) -> dict[str, Any]:
    """Delete a session with all its messages. What it left in Redis is erased within seconds, or when Redis is back.

    The answer is what is left to do for the subject. Until nothing is left of the session, a repetition is answered in
    the same way, and then with 404. Backups keep what they have.
    """
    return views.erasure(await engine.personal_data.delete(sender.subject, session_id, key_id=sender.key_id))


def _place(parse: Callable[[str], T], before: str) -> T:
    try:
        return parse(before)
    except ValueError as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", str(error), field="before") from None
