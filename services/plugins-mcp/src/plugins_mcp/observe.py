"""Metrics, health and readiness of the worker, and the HTTP server that serves them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from plugins_contract.catalog import BreakerState, ServerState
from plugins_contract.keys import GROUP
from plugins_contract.ledger.group import Backlog
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome
from plugins_mcp.mcp import ServerHealth
from plugins_mcp.ports import Observer

TOOL_CALL_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class Metrics(Observer):
    """All metrics of the worker, in their own registry."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        # Calls that this worker made terminal, by the ledger's state and the error code ("" when there is none).
        self._calls = Counter(
            "plugins_calls", "Tool calls made terminal.", ["server", "tool", "state", "code"], registry=registry
        )
        # From START to COMPLETE.
        self._seconds = Histogram(
            "plugins_call_seconds",
            "Execution time of tool calls.",
            ["server", "tool"],
            registry=registry,
            buckets=TOOL_CALL_BUCKETS,
        )
        # Calls run again because that was safe.
        self._retries = Counter("plugins_call_retries", "Calls run again.", ["server", "tool"], registry=registry)
        # Calls that were stopped here because another worker may have taken them over: stalls, or an outage of Redis.
        self._lost = Counter("plugins_leases_lost", "Leases lost.", ["server"], registry=registry)
        # Calls that run now.
        self._running = Gauge("plugins_calls_running", "Tool calls that run now.", registry=registry)
        # 0: the MCP server is not connected, or does not answer calls.
        self._servers = Gauge(
            "plugins_mcp_server_up", "Whether an MCP server is connected.", ["server"], registry=registry
        )
        # 1 for the current state of each MCP server's circuit breaker, 0 for its other states. Open: calls are refused.
        self._breakers = Gauge(
            "plugins_mcp_server_breaker",
            "The state of an MCP server's circuit breaker.",
            ["server", "state"],
            registry=registry,
        )
        # The request stream. The engine exports the same metrics, for when no worker is running.
        stream = ["stream", "group"]
        self._lag = Gauge("callstream_stream_lag", "Requests that no worker has taken.", stream, registry=registry)
        self._pending = Gauge(
            "callstream_stream_pending", "Requests that workers have taken.", stream, registry=registry
        )
        self._oldest = Gauge(
            "callstream_stream_oldest_pending_seconds",
            "Time since the lease of the oldest pending request was renewed.",
            stream,
            registry=registry,
        )
        # Dead letters are kept until an operator removes them (`plugins-mcp dead`). Their callers were answered.
        self._dead = Gauge("callstream_dead_letters", "Tool calls that no worker could handle.", registry=registry)

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome) -> None:
        code = outcome.error.code if outcome.error else ""
        self._calls.labels(request.server, request.tool, outcome.state, code).inc()
        self._seconds.labels(request.server, request.tool).observe(outcome.duration_ms / 1000)

    def retried(self, request: ToolCallRequested) -> None:
        self._retries.labels(request.server, request.tool).inc()

    def lease_lost(self, request: ToolCallRequested) -> None:
        self._lost.labels(request.server).inc()

    def update(self, running: int, servers: dict[str, ServerHealth], stream: str, backlog: Backlog | None) -> None:
        """Set the gauges, at the time of a scrape. `backlog` is None during an outage of Redis."""
        self._running.set(running)
        for name, health in servers.items():
            self._servers.labels(name).set(health.state is ServerState.READY)
            for state in BreakerState:
                self._breakers.labels(name, state).set(health.breaker is state)
        if backlog is not None:
            self._lag.labels(stream, GROUP).set(backlog.lag)
            self._pending.labels(stream, GROUP).set(backlog.pending)
            self._oldest.labels(stream, GROUP).set(backlog.oldest_pending_seconds)
            self._dead.set(backlog.dead)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


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
    host: str, port: int, *, readiness: Callable[[], Readiness], metrics: Callable[[], Awaitable[bytes]]
) -> AsyncGenerator[None]:
    """Serve /healthz, /readyz and /metrics while the context is open.

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
    sock = socket.create_server((host, port), family=family, backlog=128)  # uvicorn exits the process if it cannot bind
    serving = asyncio.create_task(server.serve(sockets=[sock]), name="health server")
    try:
        yield
    finally:
        server.should_exit = True
        await serving
