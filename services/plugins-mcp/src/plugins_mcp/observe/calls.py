"""The trail of a tool call in the worker: log lines, counters and the span of its processing."""

import logging
from contextlib import AbstractContextManager

from opentelemetry.trace import SpanKind

from callstream_runtime.tracing import call_ids, set_log_ids, span, trace_id
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome
from plugins_mcp.observe.metrics import Metrics
from plugins_mcp.ports import Observer

log = logging.getLogger("plugins_mcp.calls")


class CallObserver(Observer):
    """Logs every call at INFO, without its arguments and its result. The ids are those of the call's task."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def processing(self, request: ToolCallRequested) -> AbstractContextManager[object]:
        set_log_ids(call_ids(request))
        attributes = {
            "messaging.system": "redis",
            "messaging.operation.name": "process",
            "messaging.destination.name": "events.plugins",
            "messaging.consumer.group.name": "plugins-workers",
            "messaging.message.id": request.correlation_id,
        }
        return span("process events.plugins", SpanKind.CONSUMER, request.traceparent, attributes)

    def redelivered(self, request: ToolCallRequested, how: str) -> None:
        self._metrics.redeliveries.labels(how).inc()
        log.warning("tool call is delivered again", extra=call_ids(request) | {"how": how})

    def dead_letter(self, cause: str) -> None:
        self._metrics.dead_letters.labels(cause).inc()

    def started(self, request: ToolCallRequested, starts: int, queued_ms: int) -> None:
        if starts == 1:
            self._metrics.queue_seconds.labels(request.server).observe(queued_ms / 1000, _exemplar(request))
        log.info(
            "tool call started",
            extra={"server": request.server, "tool": request.tool, "attempt": starts, "queuedMs": queued_ms},
        )

    def not_run(self, request: ToolCallRequested, why: str) -> None:
        log.info("tool call is not run: %s", why, extra={"server": request.server, "tool": request.tool})

    def retried(self, request: ToolCallRequested, after_seconds: float, why: str) -> None:
        self._metrics.retries.labels(
            request.server, self._metrics.tools[request.server, request.kind or request.tool]
        ).inc()
        fields = {"server": request.server, "tool": request.tool, "why": why, "afterMs": round(after_seconds * 1000)}
        log.warning("tool call is retried", extra=fields)

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome) -> None:
        tool = self._metrics.tools[request.server, request.kind or request.tool]  # not each URI
        code = outcome.error.code if outcome.error else ""
        self._metrics.calls.labels(request.server, tool, outcome.state, code).inc()
        self._metrics.call_seconds.labels(request.server, tool).observe(outcome.duration_ms / 1000, _exemplar(request))
        fields: dict[str, object] = {
            "server": request.server,
            "tool": request.tool,
            "state": outcome.state,
            "runMs": outcome.duration_ms,
            "attempts": outcome.attempts,
        }
        if code:
            fields["code"] = code
        log.info("tool call finished", extra=fields)

    def lease_lost(self, request: ToolCallRequested) -> None:
        self._metrics.leases_lost.labels(request.server).inc()


def _exemplar(request: ToolCallRequested) -> dict[str, str]:
    return {"trace_id": trace_id(request.traceparent, request.turn_id)}
