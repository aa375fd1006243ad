"""Sessions: make one, list them, read one, forget one; and what tools there are."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import AwareDatetime

from dialog_engine.http import views
from dialog_engine.http.auth import Subject
from dialog_engine.http.services import Engine

router = APIRouter(prefix="/v1", tags=["sessions"])


@router.post("/sessions", status_code=HTTPStatus.CREATED)
async def create(engine: Engine, subject: Subject) -> dict[str, str]:
    """A new, empty session."""
    return {"sessionId": await engine.sessions.create(subject)}


@router.get("/sessions")
async def sessions(
    engine: Engine,
    subject: Subject,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[AwareDatetime | None, Query(description="Only those last changed before.")] = None,
) -> dict[str, Any]:
    """The newest sessions first."""
    before_ms = None if before is None else views.milliseconds(before)
    records = await engine.sessions.list(subject, limit=limit, before=before_ms)
    return {"sessions": [views.session(record) for record in records]}


@router.get("/sessions/{session_id}/messages")
async def messages(session_id: str, engine: Engine, subject: Subject) -> dict[str, Any]:
    """All that was said, oldest first, and how each turn went."""
    session, said = await engine.archive.transcript(subject, session_id)
    return views.transcript(session, said, await engine.archive.turns(subject, session_id))


@router.delete("/sessions/{session_id}")
async def delete(session_id: str, engine: Engine, subject: Subject) -> Response:
    """Forget a session and all that was said in it."""
    await engine.sessions.delete(subject, session_id)
    return Response(status_code=HTTPStatus.NO_CONTENT)


@router.get("/tools")
async def tools(engine: Engine, _: Subject) -> dict[str, Any]:
    """What the model is offered, and what was left out and why."""
    catalog = engine.tools.tools()
    await engine.exposure.prepare(catalog)
    return {
        "mcp": "enabled" if engine.about.mcp_enabled else "disabled",
        "exposure": views.exposure(engine.exposure, catalog),
        "servers": [views.server(view) for view in engine.tools.servers],
    }


@router.get("/models")
async def models(engine: Engine, _: Subject) -> dict[str, Any]:
    """What a message may ask for."""
    choices = engine.choices
    return {
        "models": [
            {"name": name, "label": label, "default": name == choices.default}
            for name, label in choices.labels().items()
        ],
        "toolModes": choices.tool_modes,
    }


@router.get("/about")
async def about(engine: Engine, _: Subject) -> dict[str, Any]:
    """What this engine is."""
    about = engine.about
    catalog = engine.tools.tools()
    await engine.exposure.prepare(catalog)
    return {
        "name": "Callstream",
        "version": about.version,
        "model": {"id": about.model, "label": about.model_label, "scripted": about.scripted},
        "mcp": {
            "enabled": about.mcp_enabled,
            "tools": len(catalog),
            "exposure": engine.exposure.in_force(catalog).mode,
        },
    }
