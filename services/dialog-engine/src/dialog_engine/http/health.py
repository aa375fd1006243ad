"""What the operators of the engine watch: liveness, readiness and metrics."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from callstream_runtime.connection_limits import PROBLEM_MEDIA_TYPE
from dialog_engine.http import described
from dialog_engine.http.requests import Engine, Sender
from dialog_engine.identity.principal import OPERATOR

router = APIRouter(tags=["operations"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Liveness: the event loop answers."""
    return {"status": "ok"}


@router.get(
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


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses=described.content(HTTPStatus.OK, "text/plain", "application/openmetrics-text"),
)
async def metrics(engine: Engine, accept: Annotated[str, Header()] = "") -> Response:
    """Metrics in the text format of Prometheus, or in OpenMetrics."""
    text, content_type = await engine.metrics(accept)
    return Response(text, headers={"Content-Type": content_type})
