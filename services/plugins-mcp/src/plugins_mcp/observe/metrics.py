"""Every metric of the worker, declared once."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from plugins_contract.catalog import BreakerState, ServerState
from plugins_contract.keys import GROUP
from plugins_contract.ledger.group import Backlog
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome
from plugins_mcp.mcp import ServerHealth
from plugins_mcp.ports import Observer

TOOL_CALL_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class Metrics(Observer):
    """The worker's metrics in a registry of their own."""

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
        # Calls given up here because another worker may have them: a sign of stalls or of Redis being away.
        self._lost = Counter("plugins_leases_lost", "Leases lost.", ["server"], registry=registry)
        # Calls that run now, and how many may.
        self._running = Gauge("plugins_calls_running", "Tool calls that run now.", registry=registry)
        # 0: an MCP server is not connected, or answers no calls.
        self._servers = Gauge(
            "plugins_mcp_server_up", "Whether an MCP server is connected.", ["server"], registry=registry
        )
        # 1 for the state that the circuit breaker of each MCP server is in, 0 for the others. Open: calls are refused.
        self._breakers = Gauge(
            "plugins_mcp_server_breaker",
            "The state of an MCP server's circuit breaker.",
            ["server", "state"],
            registry=registry,
        )
        # The request stream; the engine exports the same, in case all workers are gone.
        stream = ["stream", "group"]
        self._lag = Gauge("callstream_stream_lag", "Requests that no worker has taken.", stream, registry=registry)
        self._pending = Gauge("callstream_stream_pending", "Requests in workers' hands.", stream, registry=registry)
        self._oldest = Gauge(
            "callstream_stream_oldest_pending_seconds",
            "Time since the lease of the oldest pending request was renewed.",
            stream,
            registry=registry,
        )
        # Kept until an operator takes them away: `plugins-mcp dead list`. Their callers were answered.
        self._dead = Gauge("callstream_dead_letters", "Tool calls that nobody could handle.", registry=registry)

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome) -> None:
        code = outcome.error.code if outcome.error else ""
        self._calls.labels(request.server, request.tool, outcome.state, code).inc()
        self._seconds.labels(request.server, request.tool).observe(outcome.duration_ms / 1000)

    def retried(self, request: ToolCallRequested) -> None:
        self._retries.labels(request.server, request.tool).inc()

    def lease_lost(self, request: ToolCallRequested) -> None:
        self._lost.labels(request.server).inc()

    def now(self, running: int, servers: dict[str, ServerHealth], stream: str, backlog: Backlog | None) -> None:
        """Take what is measured at the time of a scrape. `backlog` is None while Redis is away."""
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
