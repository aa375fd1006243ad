"""JSON-RPC messages: requests as the dispatchers of this package send them, and what servers send."""

import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import msgspec
from mcp.shared.dispatcher import coerce_request_id
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, RequestId, jsonrpc_message_adapter
from opentelemetry import propagate
from opentelemetry.trace import SpanKind

from callstream_runtime.long_texts import LOOP_CHARACTERS, exceeds
from callstream_runtime.tracing import span
from plugins_mcp.mcp.content import MAX_VALUES
from plugins_mcp.mcp.error_classification import FAILED_TO_PARSE


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
            try:
                return Progress(
                    coerce_request_id(token),
                    float(progress),
                    float(total) if isinstance(total, int | float) else None,
                    message if isinstance(message, str) else None,
                )
            except OverflowError:  # an integer that is larger than every float
                return None
        case _:
            return None


def validated(message: bytes | str, *, by_name: bool = False) -> JSONRPCMessage:
    """The message. A long one takes a tenth of the time in which the SDK's adapter reads the JSON of it.

    Raises:
        ValueError: it is not a message of JSON-RPC, or not quite JSON.
    """
    if len(message) <= LOOP_CHARACTERS:
        return jsonrpc_message_adapter.validate_json(message, by_name=by_name)
    try:
        value = msgspec.json.decode(message)
    except (ValueError, RecursionError):
        return jsonrpc_message_adapter.validate_json(message, by_name=by_name)
    return jsonrpc_message_adapter.validate_python(value, by_name=by_name)


def parse_line(line: bytes) -> JSONRPCMessage | None:
    """The message on a line; None when the line holds no message.

    Bytes that are not UTF-8 and lone surrogates (`\\ud83d`, from a text that was cut within a character) are replaced.
    An answer that is not valid, too large or too deep becomes an error, so that its call ends at once, and not at its
    deadline.
    """
    if refused := refusal(line):
        return refused
    try:
        return validated(line)
    except ValueError:
        pass
    try:
        decoded: Any = json.loads(line.decode("utf-8", "replace"))
        repaired = json.dumps(decoded, ensure_ascii=False).encode("utf-8", "replace")
    except ValueError:
        return None
    except RecursionError:
        number = _id_of(line)
        return None if number is None else _unreadable(number, "it is nested too deeply")
    try:
        return validated(repaired)
    except ValueError:
        return _error_for_invalid_answer(decoded)


def _error_for_invalid_answer(message: Any) -> JSONRPCError | None:
    if not isinstance(message, dict) or "jsonrpc" not in message or "method" in message:
        return None
    number = cast("dict[str, Any]", message).get("id")
    if isinstance(number, bool) or not isinstance(number, int | str):
        return None
    return _unreadable(number, "it is not valid JSON-RPC")


def _unreadable(number: int | str | None, why: str) -> JSONRPCError:
    error = ErrorData(code=PARSE_ERROR, message=f"{FAILED_TO_PARSE} the answer: {why}")
    return JSONRPCError(jsonrpc="2.0", id=number, error=error)


class _Numbered(msgspec.Struct):
    id: int | str | None = None


def refusal(message: bytes) -> JSONRPCError | None:
    """The error in place of a message of more than MAX_VALUES values. No objects are made of it to find out."""
    if not exceeds(message, MAX_VALUES):
        return None
    return _unreadable(_id_of(message), f"it has more than {MAX_VALUES:,} values")


_ID_AT_BEGINNING = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+|"[^"\\]*")')
_ID_AT_END = re.compile(rb'"id"\s*:\s*(\d+|"[^"\\]*")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')
_ENDS = 200
"""At how many bytes of a message that cannot be read its id is looked for. Implementations write it first or last."""


def _id_of(message: bytes) -> int | str | None:
    """The id of a message whose other fields are not read."""
    try:
        return msgspec.json.decode(message, type=_Numbered).id
    except ValueError:
        return None
    except RecursionError:
        found = _ID_AT_BEGINNING.match(message[:_ENDS]) or _ID_AT_END.search(message[-_ENDS:])
        return json.loads(found[1]) if found else None
