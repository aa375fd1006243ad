"""A request as a JSON-RPC message, as the dispatchers of this package send it, and what a server reports about one."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from mcp.shared.dispatcher import coerce_request_id
from mcp.types import RequestId
from opentelemetry import propagate
from opentelemetry.trace import SpanKind

from plugins_contract.tracing import span


@contextmanager
def encoded_request(
    request_id: int, method: str, params: Mapping[str, Any] | None, *, reports: bool
) -> Generator[bytes]:
    """The message of a request, for the time of the request, which is a span. `reports`: ask for progress reports."""
    fields = dict(params or {})
    meta: dict[str, Any] = dict(fields.pop("_meta", None) or {})
    if reports:
        meta["progressToken"] = request_id
    name = f"MCP send {method} {fields.get('name', '')}".rstrip()
    with span(name, SpanKind.CLIENT, None, {"mcp.method.name": method}) as traced:
        if traced is not None:
            propagate.inject(meta)
        if meta:
            fields["_meta"] = meta
        message = {"jsonrpc": "2.0", "id": request_id, "method": method} | ({"params": fields} if fields else {})
        yield encoded(message)


def encoded(message: Mapping[str, Any]) -> bytes:
    """A message as JSON in UTF-8, without line breaks.

    Raises:
        ValueError: it holds NaN, an infinite number or half a character, which JSON cannot express.
    """
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class Progress(NamedTuple):
    """A report about the request whose progress token is `token`."""

    token: RequestId
    progress: float
    total: float | None
    message: str | None


def progress_of(params: Mapping[str, Any] | None) -> Progress | None:
    """The report in a progress notification; None when it is not valid."""
    match params:
        case {"progressToken": str() | int() as token, "progress": int() | float() as progress} if not (
            isinstance(token, bool) or isinstance(progress, bool)
        ):
            total, message = params.get("total"), params.get("message")
            return Progress(
                coerce_request_id(token),
                float(progress),
                float(total) if isinstance(total, int | float) else None,
                message if isinstance(message, str) else None,
            )
        case _:
            return None
