"""Counts what happens to calls."""

from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome
from plugins_mcp.observe.metrics import Metrics
from plugins_mcp.ports import Observer


class CallObserver(Observer):
    """The observer of the handler's facts."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome) -> None:
        tool = self._metrics.tools.of(request.tool, request.server)
        code = outcome.error.code if outcome.error else ""
        self._metrics.calls.labels(request.server, tool, outcome.state, code).inc()
        self._metrics.call_seconds.labels(request.server, tool).observe(outcome.duration_ms / 1000)

    def retried(self, request: ToolCallRequested) -> None:
        self._metrics.retries.labels(request.server, self._metrics.tools.of(request.tool, request.server)).inc()

    def lease_lost(self, request: ToolCallRequested) -> None:
        self._metrics.leases_lost.labels(request.server).inc()
