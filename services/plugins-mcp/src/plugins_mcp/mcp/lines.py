"""One line of a server that speaks on its standard output. Pure."""

import json
from typing import Any, cast

from mcp.shared.message import SessionMessage
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from plugins_mcp.mcp.verdict import FAILED_TO_PARSE


def read_line(line: bytes) -> SessionMessage | None:
    """The message on a line; None for what is none.

    Text that is not UTF-8, or half a character (`\\ud83d`, where a server cut a text between the two), is mended. In
    the place of an answer that cannot be read there is an error: its call would wait to its deadline for another.
    """
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        pass
    try:
        said: Any = json.loads(line.decode("utf-8", "replace"))
        mended = json.dumps(said, ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(mended, by_name=False))
    except ValueError:
        return _unreadable(said)


def _unreadable(said: Any) -> SessionMessage | None:
    if not isinstance(said, dict) or "jsonrpc" not in said or "method" in said:
        return None
    number = cast("dict[str, Any]", said).get("id")
    if isinstance(number, bool) or not isinstance(number, int | str):
        return None
    error = ErrorData(code=PARSE_ERROR, message=f"{FAILED_TO_PARSE} the answer: it is not valid JSON-RPC")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error))
