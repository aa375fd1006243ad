"""For those who operate the engine: is it alive, can it serve, what does it count."""

from http import HTTPStatus

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from dialog_engine.http.services import Engine

router = APIRouter(tags=["operations"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Alive: the event loop answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(engine: Engine) -> JSONResponse:
    """Ready to serve, with the tools of every MCP server that was not found to be in trouble.

    Without Redis or workers chat still answers: that is degraded, not unready.
    """
    now = await engine.readiness()
    code = HTTPStatus.OK if now.status in ("ready", "degraded") else HTTPStatus.SERVICE_UNAVAILABLE
    return JSONResponse({"status": now.status, "parts": now.parts}, code)


@router.get("/metrics")
async def metrics(engine: Engine) -> Response:
    """Counters for Prometheus."""
    return Response(await engine.metrics(), media_type=CONTENT_TYPE_LATEST)
