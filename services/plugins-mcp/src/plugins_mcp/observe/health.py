"""/healthz, /readyz and /metrics of the worker."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the worker consumes; `parts` says how each part is."""

    ready: bool
    parts: dict[str, Any]


class _Server(uvicorn.Server):
    """Signals belong to the worker, not to its health server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@contextlib.asynccontextmanager
async def health_server(
    host: str, port: int, *, readiness: Callable[[], Readiness], metrics: Callable[[], Awaitable[bytes]]
) -> AsyncGenerator[None]:
    """Serve while the context is open.

    Raises:
        OSError: the address cannot be listened on.
    """

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        now = readiness()
        return JSONResponse(
            {"status": "ready" if now.ready else "unready", "parts": now.parts}, 200 if now.ready else 503
        )

    async def show_metrics(_: Request) -> Response:
        return Response(await metrics(), media_type=CONTENT_TYPE_LATEST)

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", show_metrics)]
    config = uvicorn.Config(Starlette(routes=routes), access_log=False, log_config=None, timeout_graceful_shutdown=1)
    server = _Server(config)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=128)  # uvicorn's own way exits the process
    serving = asyncio.create_task(server.serve(sockets=[sock]), name="health server")
    try:
        yield
    finally:
        server.should_exit = True
        await serving
