"""What ties together all that is observed of a turn: its trace, and the ids of its log lines.

Traces (OpenTelemetry) are off, and free, unless the OTEL_* environment says where spans go. A trace crosses processes
as a `traceparent` (W3C Trace Context): in the header of a request, in the row of a turn, in the event of a tool call,
and in `_meta` of an MCP request.
"""

import os
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind
from opentelemetry.util.types import AttributeValue

from plugins_contract.messages import ToolCallRequested

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_tracer: trace.Tracer | None = None
_NO_IDS: Mapping[str, str] = {}
log_ids: ContextVar[Mapping[str, str]] = ContextVar("ids of log lines", default=_NO_IDS)
"""What every line of the current task has: see `set_log_ids`."""


class TracingError(Exception):
    """Spans cannot be exported as the environment asks; the text names the fix."""


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for spans, by the rules of OpenTelemetry's SDKs."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return exporter == "otlp" or (not exporter and any(environment.get(name) for name in ENDPOINTS))


@contextmanager
def exported_spans(service: str) -> Generator[None]:
    """Export the spans of this process while the context is open, if the environment asks for it.

    `service` is the name of the service unless OTEL_SERVICE_NAME is set.

    Raises:
        TracingError: the SDK is not installed.
    """
    if not wanted(os.environ):
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 -- an extra
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 -- an extra
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 -- an extra
    except ImportError:
        raise TracingError(
            f"OTEL_EXPORTER_OTLP_ENDPOINT: spans need packages that are not installed: install {service}[otel], or"
            " unset it"
        ) from None
    os.environ.setdefault("OTEL_SERVICE_NAME", service)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    use(trace.get_tracer("callstream"))
    try:
        yield
    finally:
        use(None)
        provider.shutdown()


def use(tracer: trace.Tracer | None) -> None:
    """Make spans with this tracer; with None there are none."""
    global _tracer  # noqa: PLW0603 -- one for the process, as OpenTelemetry's provider is
    _tracer = tracer


def start_span(
    name: str, kind: SpanKind, traceparent: str | None, attributes: Mapping[str, AttributeValue]
) -> Span | None:
    """A span below `traceparent` that the caller ends; None while tracing is off."""
    if _tracer is None:
        return None
    return _tracer.start_span(name, context=_context(traceparent), kind=kind, attributes=attributes)


def span(
    name: str, kind: SpanKind, traceparent: str | None, attributes: Mapping[str, AttributeValue]
) -> AbstractContextManager[Span | None]:
    """A span below `traceparent`, current while the context is open. Nothing happens while tracing is off."""
    if _tracer is None:
        return nullcontext()
    return _tracer.start_as_current_span(name, context=_context(traceparent), kind=kind, attributes=attributes)


def _context(traceparent: str | None) -> Context | None:
    return propagate.extract({"traceparent": traceparent}) if traceparent else None


def traceparent_of_turn(turn_id: str, sent: str | None) -> str:
    """The trace of a new turn: that of the current span, that which the client has sent, or one of its own.

    The trace id of a turn without one is its turn id, so that logs of every service and release agree on it.
    """
    carrier: dict[str, str] = {}
    if _tracer is not None:
        propagate.inject(carrier)
    number = turn_id.replace("-", "")
    return carrier.get("traceparent") or sent or f"00-{number}-{number[-16:]}-00"


def trace_id(traceparent: str | None, turn_id: str) -> str:
    """The trace id, 32 hexadecimal digits: see `traceparent_of_turn`."""
    return traceparent[3:35] if traceparent else turn_id.replace("-", "")


class OfTurn(Protocol):
    """A turn, or something that belongs to one."""

    @property
    def turn_id(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def traceparent(self) -> str | None: ...


def turn_ids(of: OfTurn) -> dict[str, str]:
    """The ids that every line about a turn has, and whose turn it is."""
    return {
        "turnId": of.turn_id,
        "sessionId": of.session_id,
        "traceId": trace_id(of.traceparent, of.turn_id),
        "subject": of.subject,
    }


def call_ids(request: ToolCallRequested) -> dict[str, str]:
    """The ids that every line about a tool call has."""
    return {"correlationId": request.correlation_id, **turn_ids(request)}


def set_log_ids(ids: Mapping[str, str]) -> None:
    """Add these ids to every later line of this task, and of the tasks that it creates from now on."""
    log_ids.set(ids)
