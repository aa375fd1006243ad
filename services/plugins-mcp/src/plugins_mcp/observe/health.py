"""The HTTP server of the worker's metrics, health and readiness."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from callstream_runtime.connection_limits import ConnectionLimits
from callstream_runtime.http_connection import connections_within
from callstream_runtime.listening import listeners

LIMITS = ConnectionLimits(connections=100, connections_per_address=100)
"""Probes and Prometheus need a few connections. The limits of heads and bodies are those of the engine."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the worker consumes requests; `parts` holds the state of each part."""

    ready: bool
    parts: dict[str, Any]


class _Server(uvicorn.Server):
    """A server that leaves signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@contextlib.asynccontextmanager
async def health_server(
    hosts: str, port: int, *, readiness: Callable[[], Readiness], metrics: Callable[[str], Awaitable[tuple[bytes, str]]]
) -> AsyncGenerator[None]:
    """Serve /healthz, /readyz and /metrics while the context is open.

    `hosts`: see `listeners`. `metrics` takes the `Accept` field of a request, and returns the metrics and their content
    type.

    Raises:
        OSError: an address cannot be listened on.
    """

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        now = readiness()
        return JSONResponse(
            {"status": "ready" if now.ready else "unready", "parts": now.parts}, 200 if now.ready else 503
        )

    async def show_metrics(request: Request) -> Response:
        text, content_type = await metrics(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", show_metrics)]
    config = uvicorn.Config(
        Starlette(routes=routes),
        http=cast("type[asyncio.Protocol]", connections_within(LIMITS)),
        ws="none",
        proxy_headers=False,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    sockets = listeners(hosts, port)  # uvicorn exits the process if it cannot bind
    for each in sockets:
        each.listen()
    serving = asyncio.create_task(server.serve(sockets=sockets), name="health server")
    try:
        yield
    finally:
        server.should_exit = True
        await serving
