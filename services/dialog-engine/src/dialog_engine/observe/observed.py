"""Counts, logs and traces what passes through ports: turns, requests to models, and tool calls."""

import logging
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

from opentelemetry.trace import Span, SpanKind, StatusCode

from callstream_runtime.metrics import begin_at_zero
from callstream_runtime.tracing import call_ids, start_span, trace_id, turn_ids
from dialog_engine.calls.subscriptions import CallObserver
from dialog_engine.chat.ports import TurnLog, TurnLogs
from dialog_engine.consumption.subjects import SubjectUse
from dialog_engine.errors import LLMError
from dialog_engine.model import (
    ApprovalStatus,
    ApprovalStep,
    Done,
    ToolCall,
    ToolStep,
    Turn,
    TurnEvent,
    TurnFailed,
    Usage,
)
from dialog_engine.observe.metrics import Metrics
from dialog_engine.tool_calls.ports import AnswerObserver, ModelObserver
from dialog_engine.tool_calls.values import CLIENT_CLASS
from plugins_contract.ledger.replies import Loss
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolError, ToolOutcome

logger = logging.getLogger("dialog_engine.turns")
call_log = logging.getLogger("dialog_engine.calls")

MAX_LOGGED = 200
"""How many characters of what a model has made up are logged."""
NOT_RUN = "(not run)"
"""Stands for the tool of calls that were answered without running anything, because there is no such tool."""


class ObservedModel(ModelObserver):
    """Counts, logs and traces the requests to one model."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        """`model` is its name, `provider:model`."""
        begin_at_zero(metrics.llm_retries, model)
        self._metrics = metrics
        self._model = model

    def request(self, turn: Turn) -> AnswerObserver:
        return _Answer(self._metrics, self._model, turn)

    def retried(self, times: int) -> None:
        self._metrics.llm_retries.labels(self._model).inc(times)


class _Answer(AnswerObserver):
    """One request to a model, from its start to its end."""

    def __init__(self, metrics: Metrics, model: str, turn: Turn) -> None:
        self._metrics = metrics
        self._model = model
        self._turn = turn
        self._started = time.monotonic()
        provider, _, name = model.partition(":")
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider, "gen_ai.request.model": name}
        # Not current: parts of an answer may be read in different tasks.
        self._span = start_span(f"chat {name}", SpanKind.CLIENT, turn.traceparent, attributes)
        self._first_token: float | None = None
        self._outcome = "abandoned"  # unless the stream is read to its end
        self._usage = Usage()

    def began(self) -> None:
        self._first_token = time.monotonic() - self._started
        self._metrics.llm_first_token.labels(self._model).observe(self._first_token, _exemplar(self._turn))

    def completed(self, usage: Usage) -> None:
        self._usage = usage
        self._metrics.llm_tokens.labels("input", self._model).inc(usage.input_tokens)
        self._metrics.llm_tokens.labels("output", self._model).inc(usage.output_tokens)
        self._outcome = "ok"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, LLMError):
            self._outcome = error.code
            fields = {"model": self._model, "code": error.code}
            logger.warning("model request failed: %s", error, extra=turn_ids(self._turn) | fields)
        self._metrics.llm_requests.labels(self._outcome, self._model).inc()
        if logger.isEnabledFor(logging.INFO):
            fields: dict[str, object] = {
                "model": self._model,
                "outcome": self._outcome,
                "totalMs": round((time.monotonic() - self._started) * 1000),
                "inputTokens": self._usage.input_tokens,
                "outputTokens": self._usage.output_tokens,
            }
            if self._first_token is not None:
                fields["firstTokenMs"] = round(self._first_token * 1000)
            logger.info("model request finished", extra=turn_ids(self._turn) | fields)
        if self._span is not None:
            self._span.set_attribute("gen_ai.usage.input_tokens", self._usage.input_tokens)
            self._span.set_attribute("gen_ai.usage.output_tokens", self._usage.output_tokens)
            if self._outcome != "ok":
                self._span.set_attribute("error.type", self._outcome)
                self._span.set_status(StatusCode.ERROR)
            self._span.end()


class ObservedLogs(TurnLogs):
    """Logs of turns that observe the turns and tool calls written into them."""

    def __init__(self, logs: TurnLogs, metrics: Metrics, subjects: SubjectUse | None = None) -> None:
        self._logs = logs
        self._metrics = metrics
        self._subjects = subjects

    def open(self, turn: Turn) -> TurnLog:
        self._metrics.turns_running.inc()
        if self._subjects and turn.epoch == 1:
            self._subjects.count("turns", turn.subject)
        if logger.isEnabledFor(logging.INFO):
            logger.info(
                "turn started" if turn.epoch == 1 else "turn resumed", extra=turn_ids(turn) | {"epoch": turn.epoch}
            )
        return _ObservedLog(self._logs.open(turn), self._metrics, turn, self._subjects)

    async def waited_for(self, turn: Turn) -> Mapping[str, str] | None:
        return await self._logs.waited_for(turn)

    async def has_ended(self, turn: Turn) -> bool:
        return await self._logs.has_ended(turn)

    def moved(self, turn: Turn) -> None:
        self._logs.moved(turn)


class _ObservedLog(TurnLog):
    def __init__(self, log: TurnLog, metrics: Metrics, turn: Turn, subjects: SubjectUse | None) -> None:
        self._subjects = subjects
        self._ended = subjects.opened("running", turn.subject) if subjects else lambda: None
        self._log = log
        self._metrics = metrics
        self._turn = turn
        self._client_tools = frozenset(turn.client_tools())

    def append(self, event: TurnEvent) -> None:
        match event:
            case ToolStep() if event.status.final:
                tool = self._tool(event)
                self._metrics.tool_calls.labels(tool, event.status).inc()
            case ApprovalStep() if logger.isEnabledFor(logging.INFO):
                self._approval(event)
            case TurnFailed(code):
                logger.warning("turn failed", extra=turn_ids(self._turn) | {"code": code})
            case Done():
                self._done(event)
            case _:
                pass
        self._log.append(event)

    async def settle(self) -> None:
        await self._log.settle()

    async def close(self) -> None:
        self._metrics.turns_running.dec()
        self._ended()
        await self._log.close()

    def _tool(self, step: ToolStep) -> str:
        """The tool's name; what models and clients have named themselves has one label each."""
        if not step.server:
            return NOT_RUN
        of_client = step.call.tool_name in self._client_tools
        return CLIENT_CLASS if of_client else self._metrics.tools["", step.call.tool_name]

    def _approval(self, step: ApprovalStep) -> None:
        """A call waits for a person, or was decided on; without its arguments."""
        fields = {"correlationId": step.call.correlation_id, "server": step.server, "toolName": step.call.tool_name}
        if step.status is ApprovalStatus.ASKED:
            call_log.info("tool call waits for approval", extra=turn_ids(self._turn) | fields)
        else:
            decided = fields | {"decision": str(step.status)}
            call_log.info("tool call approval decided", extra=turn_ids(self._turn) | decided)

    def _done(self, event: Done) -> None:
        seconds = event.total_ms / 1000
        exemplar = _exemplar(self._turn)
        self._metrics.turns.labels(event.reason).inc()
        if self._subjects:
            self._subjects.count("tokens", self._turn.subject, event.usage.input_tokens + event.usage.output_tokens)
        self._metrics.turn_seconds.observe(seconds, exemplar)
        if event.ttft_ms is not None:
            self._metrics.turn_first_token.observe(event.ttft_ms / 1000, exemplar)
        if logger.isEnabledFor(logging.INFO):
            fields = {
                "reason": event.reason,
                "model": event.model or "",
                "totalMs": event.total_ms,
                "firstTokenMs": event.ttft_ms,
                "inputTokens": event.usage.input_tokens,
                "outputTokens": event.usage.output_tokens,
            }
            logger.info("turn finished", extra=turn_ids(self._turn) | fields)


def _exemplar(turn: Turn) -> dict[str, str]:
    return {"trace_id": trace_id(turn.traceparent, turn.turn_id)}


class ObservedCalls(CallObserver):
    """Logs every call at INFO, without its arguments and its result."""

    def __init__(self, metrics: Metrics, subjects: SubjectUse | None = None) -> None:
        self._metrics = metrics
        self._subjects = subjects

    def requested(self, request: ToolCallRequested) -> None:
        if self._subjects:
            self._subjects.count("calls", request.subject)
        if call_log.isEnabledFor(logging.INFO):
            fields = {"server": request.server, "tool": request.tool, "class": request.execution_class}
            call_log.info("tool call requested", extra=call_ids(request) | fields)

    @contextmanager
    def publishing(self, requests: Sequence[ToolCallRequested]) -> Generator[None]:
        sent = [_send_span(request) for request in requests]
        try:
            yield
        finally:
            for each in sent:
                if each is not None:
                    each.end()

    def enqueued(self, request: ToolCallRequested, entry: str, backlog: int) -> None:
        if call_log.isEnabledFor(logging.INFO):
            call_log.info("tool call enqueued", extra=call_ids(request) | {"entry": entry, "backlog": backlog})

    def refused(self, correlation_id: str, request: ToolCallRequested | None, reason: str, detail: str) -> None:
        self._metrics.calls_refused.labels(reason).inc()
        fields = {"correlationId": correlation_id, "reason": reason}
        if request is not None:
            fields |= call_ids(request) | {"server": request.server, "tool": request.tool}
        call_log.warning("tool call is not enqueued: %s", detail, extra=fields)

    def lost(self, request: ToolCallRequested, loss: Loss) -> None:
        self._metrics.calls_lost.labels(loss).inc()
        call_log.warning("tool call is lost in Redis", extra=call_ids(request) | {"loss": str(loss)})

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome, seconds: float | None = None) -> None:
        if seconds is not None:
            tool = self._metrics.tools["", request.tool_name]
            exemplar = {"trace_id": trace_id(request.traceparent, request.turn_id)}
            self._metrics.tool_call_seconds.labels(tool).observe(seconds, exemplar)
        if call_log.isEnabledFor(logging.INFO):
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
            call_log.info("tool call finished", extra=call_ids(request) | fields)


def log_refused_call(turn: Turn, call: ToolCall, error: ToolError) -> None:
    """A call of this turn is answered with `error` and not requested."""
    name = call.tool_name[:MAX_LOGGED]  # the model may have made it up
    fields = {"correlationId": call.correlation_id, "toolName": name, "code": str(error.code)}
    call_log.info("tool call refused", extra=turn_ids(turn) | fields)


def _send_span(request: ToolCallRequested) -> Span | None:
    attributes = {
        "messaging.system": "redis",
        "messaging.operation.name": "send",
        "messaging.destination.name": "events.plugins",
        "messaging.message.id": request.correlation_id,
    }
    return start_span("send events.plugins", SpanKind.PRODUCER, request.traceparent, attributes)
