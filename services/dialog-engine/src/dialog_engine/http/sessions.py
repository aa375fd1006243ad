"""All routes but those of turns: sessions, what the engine offers, and what its operators watch."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from callstream_runtime.http_connection import PROBLEM_MEDIA_TYPE
from dialog_engine.http import described, views
from dialog_engine.http.export import as_lines, begun, joined, usage_lines
from dialog_engine.http.guards import Sender, Subject
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.services import Engine, large_answer
from dialog_engine.identity.principal import OPERATOR

T = TypeVar("T")

router = APIRouter(prefix="/v1", tags=["sessions"])
operations = APIRouter(tags=["operations"])


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


@router.get("/me")
async def me(sender: Sender) -> dict[str, Any]:
    """Who makes this request: the owner of its sessions, a name to show, and its roles."""
    return {"subject": sender.subject, "name": sender.name, "roles": sender.roles}


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
    of_sessions, of_usage = (
        as_lines(engine.archive, sender.subject, parts),
        usage_lines(engine.usage, sender.subject),
    )
    lines = await begun(joined(of_sessions, of_usage))
    return StreamingResponse(lines, media_type="application/jsonl", headers=name)


@router.delete("/me/data", status_code=HTTPStatus.ACCEPTED, responses=described.ERASURE)
async def erase(engine: Engine, sender: Sender) -> dict[str, Any]:
    """Erase all sessions that the subject has now. Those in `running` have a running turn, and are erased after it.

    The answer is what is left to do; a repetition is answered with the rest, and nothing is left when all is 0.
    """
    return views.erasure(await engine.personal_data.erase(sender.subject, key_id=sender.key_id))


@router.get("/tools", dependencies=[Depends(large_answer)])
async def tools(engine: Engine, sender: Sender) -> dict[str, Any]:
    """The tools that the model is offered for the sender, and those that were left out, with the reason."""
    directory = engine.tools.visible_to(sender.subject, sender.roles)
    catalog = directory.tools()
    await engine.exposure.prepare(catalog)
    return {
        "mcp": "enabled" if engine.about.mcp_enabled else "disabled",
        "exposure": views.exposure(engine.exposure, catalog),
        "servers": [views.server(view) for view in directory.servers],
    }


@router.get("/models")
async def models(engine: Engine, _: Subject) -> dict[str, Any]:
    """The models and tool modes that a message may ask for."""
    choices = engine.choices
    return {
        "models": [
            {"name": name, "label": label, "default": name == choices.default}
            for name, label in choices.labels().items()
        ],
        "toolModes": choices.tool_modes,
    }


@router.get("/about")
async def about(engine: Engine, sender: Sender) -> dict[str, Any]:
    """The engine's version, its model and the sender's tools."""
    about = engine.about
    catalog = engine.tools.visible_to(sender.subject, sender.roles).tools()
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


@operations.get("/healthz")
async def healthz() -> dict[str, str]:
    """Liveness: the event loop answers."""
    return {"status": "ok"}


@operations.get(
    "/readyz",
    responses=described.content(
        HTTPStatus.SERVICE_UNAVAILABLE, "application/json", PROBLEM_MEDIA_TYPE, schema={"type": "object"}
    ),
)
async def readyz(engine: Engine, sender: Sender) -> JSONResponse:
    """Readiness: turns can be served, and every MCP server was listed or has failed. Operators see each part.

    Without Redis or workers chat still answers: the engine is degraded then, not unready.
    """
    now = await engine.readiness()
    code = HTTPStatus.OK if now.status in ("ready", "degraded") else HTTPStatus.SERVICE_UNAVAILABLE
    parts = {"parts": now.parts} if OPERATOR in sender.roles else {}
    return JSONResponse({"status": now.status} | parts, code)


@operations.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses=described.content(HTTPStatus.OK, "text/plain", "application/openmetrics-text"),
)
async def metrics(engine: Engine, accept: Annotated[str, Header()] = "") -> Response:
    """Metrics in the text format of Prometheus, or in OpenMetrics."""
    text, content_type = await engine.metrics(accept)
    return Response(text, headers={"Content-Type": content_type})


def _place(parse: Callable[[str], T], before: str) -> T:
    try:
        return parse(before)
    except ValueError as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", str(error), field="before") from None
