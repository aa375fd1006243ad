"""Messages of servers that cannot be read as they are: what they were meant to be, or the error in their place.

An answer that is not valid, too large or too deep becomes an error, so that its call ends at once, and not at its
deadline.
"""

import json
import re
from typing import Any, cast

import msgspec
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError

from plugins_mcp.mcp.content import MAX_VALUES
from plugins_mcp.mcp.error_classification import FAILED_TO_PARSE


def mended(message: bytes) -> bytes | JSONRPCError | None:
    """The message without bytes that are not UTF-8 and lone surrogates (`\\ud83d`, from a text that was cut within a
    character), which are replaced. None when it is no JSON."""
    try:
        decoded: Any = json.loads(message.decode("utf-8", "replace"))
        return json.dumps(decoded, ensure_ascii=False).encode("utf-8", "replace")
    except ValueError:
        return None
    except RecursionError:
        number = _id_of(message)
        return None if number is None else _unreadable(number, "it is nested too deeply")


def invalid_answer(message: bytes) -> JSONRPCError | None:
    """The error in place of an answer that is not valid JSON-RPC; None for what is no answer."""
    decoded = json.loads(message)
    if not isinstance(decoded, dict) or "jsonrpc" not in decoded or "method" in decoded:
        return None
    number = cast("dict[str, Any]", decoded).get("id")
    if isinstance(number, bool) or not isinstance(number, int | str):
        return None
    return _unreadable(number, "it is not valid JSON-RPC")


def _unreadable(number: int | str | None, why: str) -> JSONRPCError:
    error = ErrorData(code=PARSE_ERROR, message=f"{FAILED_TO_PARSE} the answer: {why}")
    return JSONRPCError(jsonrpc="2.0", id=number, error=error)


class _Numbered(msgspec.Struct):
    id: int | str | None = None


def too_many_values(message: bytes) -> JSONRPCError:
    """The error in place of a message of more than MAX_VALUES values."""
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
