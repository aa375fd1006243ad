"""The trail of a tool call in the engine: log lines, counters and the span of its publication."""

import logging
from contextlib import AbstractContextManager

from opentelemetry.trace import SpanKind

from dialog_engine.calls.observer import CallObserver
from dialog_engine.observe.metrics import Metrics
from plugins_contract.ledger.replies import Loss
from plugins_contract.logs import call_ids
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome
from plugins_contract.tracing import span, trace_id

log = logging.getLogger("dialog_engine.calls")


class ObservedCalls(CallObserver):
    """Logs every call at INFO, without its arguments and its result."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def requested(self, request: ToolCallRequested) -> None:
        if log.isEnabledFor(logging.INFO):
            fields = {"server": request.server, "tool": request.tool, "class": request.execution_class}
            log.info("tool call requested", extra=call_ids(request) | fields)

    def publishing(self, request: ToolCallRequested) -> AbstractContextManager[object]:
        attributes = {
            "messaging.system": "redis",
            "messaging.operation.name": "send",
            "messaging.destination.name": "events.plugins",
            "messaging.message.id": request.correlation_id,
        }
        return span("send events.plugins", SpanKind.PRODUCER, request.traceparent, attributes)

    def enqueued(self, request: ToolCallRequested, entry: str, backlog: int) -> None:
        if log.isEnabledFor(logging.INFO):
            log.info("tool call enqueued", extra=call_ids(request) | {"entry": entry, "backlog": backlog})

    def refused(self, correlation_id: str, reason: str, detail: str) -> None:
        self._metrics.calls_refused.labels(reason).inc()
        fields = {"correlationId": correlation_id, "reason": reason}
        log.warning("tool call is not enqueued: %s", detail, extra=fields)

    def lost(self, request: ToolCallRequested, loss: Loss) -> None:
        self._metrics.calls_lost.labels(loss).inc()
        log.warning("tool call is lost in Redis", extra=call_ids(request) | {"loss": str(loss)})

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome, seconds: float | None = None) -> None:
        if seconds is not None:
            tool = self._metrics.tools.of(request.tool_name)
            exemplar = {"trace_id": trace_id(request.traceparent, request.turn_id)}
            self._metrics.tool_call_seconds.labels(tool).observe(seconds, exemplar)
        if log.isEnabledFor(logging.INFO):
            fields: dict[str, object] = {
                "server": request.server,
                "tool": request.tool,
                "state": outcome.state,
                "runMs": outcome.duration_ms,
                "attempts": outcome.attempts,
            }
            if outcome.error is not None:
                fields["code"] = outcome.error.code
            if seconds is not None:
                fields["totalMs"] = round(seconds * 1000)
            log.info("tool call finished", extra=call_ids(request) | fields)
