"""Who makes a request, and everything that is stored of that subject."""

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.responses import StreamingResponse

from dialog_engine.http import described, views
from dialog_engine.http.export import as_lines, begun, joined, usage_lines
from dialog_engine.http.requests import Engine, Sender, large_answer

router = APIRouter(prefix="/v1", tags=["sessions"])


@router.get("/me")
async def me(sender: Sender) -> dict[str, Any]:
    """Who makes this request: the owner of its sessions, a name to show, and its roles."""
    return {"subject": sender.subject, "name": sender.name, "roles": sender.shown_roles}


@router.get(
    "/me/data",
    response_class=StreamingResponse,
    responses=described.content(HTTPStatus.OK, "application/jsonl"),
    dependencies=[Depends(large_answer)],
)
async def export(engine: Engine, sender: Sender) -> StreamingResponse:
    """Everything that is stored of the subject, as lines of JSON: each session with its messages and turns, and then
    `usage`: what was used by day, of each model and tool."""
    parts = engine.personal_data.export(sender.subject, key_id=sender.key_id)
    name = {"Content-Disposition": 'attachment; filename="callstream.jsonl"'}
    of_sessions = as_lines(engine.archive, engine.conversations, sender.subject, parts)
    lines = await begun(joined(of_sessions, usage_lines(engine.usage, sender.subject)))
    return StreamingResponse(lines, media_type="application/jsonl", headers=name)


@router.delete("/me/data", status_code=HTTPStatus.ACCEPTED, responses=described.ERASURE)
async def erase(engine: Engine, sender: Sender) -> dict[str, Any]:
    """Erase all sessions that the subject has now. Those in `running` have a running turn, and are erased after it.

    The answer is what is left to do; a repetition is answered with the rest, and nothing is left when all is 0.
    """
    return views.erasure(await engine.personal_data.erase(sender.subject, key_id=sender.key_id))
