"""Log lines of both services: as JSON or for people, each with the ids of the turn or the call that it belongs to.

Arguments, results and texts of conversations are never logged at INFO or above. `docs/observability.md` has the fields.
"""

import logging
from collections.abc import Callable
from typing import Any, TextIO

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from callstream_runtime.settings import LogFormat
from callstream_runtime.tracing import log_ids
from callstream_runtime.visible import visible

_RESERVED = frozenset(RESERVED_ATTRS)
MAX_SUBJECT = 200
"""How many characters of a subject are logged."""


def set_up_logging(
    level: str, form: LogFormat, stream: TextIO | None = None, *, subject_as: Callable[[str], str] = str
) -> None:
    """Log to `stream`, by default standard error, from `level` on. `subject_as` writes the field `subject`."""

    def complete(record: logging.LogRecord) -> bool:
        _add_ids(record)
        if subject := record.__dict__.get("subject"):
            record.__dict__["subject"] = subject_as(subject)[:MAX_SUBJECT]
        return True

    handler = logging.StreamHandler(stream)
    handler.addFilter(complete)
    handler.setFormatter(_json() if form == "json" else HumanFormatter())
    logging.basicConfig(level=level, handlers=[handler])


def _add_ids(record: logging.LogRecord) -> None:
    record.__dict__.pop("color_message", None)  # Uvicorn's message with escape sequences for terminals
    for name, value in log_ids.get().items():
        record.__dict__.setdefault(name, value)


def _json() -> logging.Formatter:
    """Lines of ASCII: nothing in them reaches the terminal, and half a character cannot make a line fail."""
    return JsonFormatter(
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
