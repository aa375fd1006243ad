"""Log lines of both services: as JSON or for people, each with the ids of the turn or the call that it belongs to.

Arguments, results and texts of conversations are never logged at INFO or above. `docs/observability.md` has the fields.
"""

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, TextIO

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.msgspec import MsgspecFormatter

from plugins_contract.messages import ToolCallRequested
from plugins_contract.settings import LogFormat
from plugins_contract.tracing import trace_id
from plugins_contract.visible import visible

_RESERVED = frozenset(RESERVED_ATTRS)
_NO_IDS: Mapping[str, str] = {}
_ids: ContextVar[Mapping[str, str]] = ContextVar("ids of log lines", default=_NO_IDS)


def turn_ids(turn_id: str, session_id: str, traceparent: str | None) -> dict[str, str]:
    """The ids that every line about a turn has."""
    return {"turnId": turn_id, "sessionId": session_id, "traceId": trace_id(traceparent, turn_id)}


def call_ids(request: ToolCallRequested) -> dict[str, str]:
    """The ids that every line about a tool call has."""
    ids = turn_ids(request.turn_id, request.session_id, request.traceparent)
    return {"correlationId": request.correlation_id, **ids}


def set_log_ids(ids: Mapping[str, str]) -> None:
    """Add these ids to every later line of this task, and of the tasks that it creates from now on."""
    _ids.set(ids)


def set_up_logging(level: str, form: LogFormat, stream: TextIO | None = None) -> None:
    """Log to `stream`, by default standard error, from `level` on."""
    handler = logging.StreamHandler(stream)
    handler.addFilter(_add_ids)
    handler.setFormatter(_json() if form == "json" else HumanFormatter())
    logging.basicConfig(level=level, handlers=[handler])


def _add_ids(record: logging.LogRecord) -> bool:
    record.__dict__.pop("color_message", None)  # Uvicorn's message with escape sequences for terminals
    for name, value in _ids.get().items():
        record.__dict__.setdefault(name, value)
    return True


def _json() -> logging.Formatter:
    return MsgspecFormatter(
        ["levelname", "name", "message"], rename_fields={"levelname": "level", "name": "logger"}, timestamp=True
    )


class HumanFormatter(logging.Formatter):
    """A line of text with the fields after it. Nothing in it can forge another line or reach the terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- the name of the base class
        """The line without its traceback."""
        fields = (f" {name}={value}" for name, value in record.__dict__.items() if name not in _RESERVED)
        return visible(super().formatMessage(record) + "".join(fields))

    def formatException(self, ei: Any) -> str:  # noqa: N802 -- see above
        """The traceback, each of its lines escaped."""
        return "\n".join(map(visible, super().formatException(ei).split("\n")))
