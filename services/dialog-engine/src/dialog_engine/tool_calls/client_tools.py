"""The tools that a request brings, which its client runs itself: whether they can be offered, and what they return.
Pure."""

import re
from collections.abc import Container, Sequence
from typing import Any

import msgspec

from dialog_engine.errors import ClientToolError
from dialog_engine.model import ClientTool, storable_json
from dialog_engine.tool_calls.arguments import MAX_DEPTH, depth_is_fine
from dialog_engine.tool_calls.exposure import gateway, search
from dialog_engine.tool_calls.resource_tools import LIST_RESOURCES, READ_RESOURCE
from dialog_engine.tool_calls.results.texts import READ_RESULT
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ContentBlock, TextBlock, ToolError, ToolOutcome

MAX_TOOLS = 128
MAX_DESCRIPTION = 10_000
"""Characters."""
MAX_BYTES = 200_000
"""Of all tools of a request together, as JSON. They are sent to the model in each round."""
OWN_NAMES = frozenset({gateway.NAME, search.NAME, READ_RESULT, LIST_RESOURCES, READ_RESOURCE})
"""The names of the engine's own tools."""
MAX_ERROR_CHARS = 2_000
"""Of the message of a result that is an error; all of it is its content."""
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check(tools: Sequence[ClientTool], taken: Container[str]) -> None:
    """Check that a model can be offered these tools, beside those whose names are `taken`.

    Raises:
        ClientToolError: it cannot.
    """
    if len(tools) > MAX_TOOLS:
        raise ClientToolError(None, "", f"{len(tools)} tools were sent; {MAX_TOOLS} are allowed")
    names: set[str] = set()
    size = 0
    for number, tool in enumerate(tools):
        if problem := _problem(tool, names, taken):
            raise ClientToolError(number, *problem)
        names.add(tool.name)
        size += len(msgspec.json.encode(tool))
        if size > MAX_BYTES:
            raise ClientToolError(None, "", f"the tools have more than {MAX_BYTES:,} bytes as JSON: send fewer")


def _problem(tool: ClientTool, names: Container[str], taken: Container[str]) -> tuple[str, str] | None:
    """The field that is wrong, and why."""
    if not _NAME.fullmatch(tool.name):
        return "name", f"{tool.name[:80]!r} must have 1 to 64 letters, digits, _ and - (ASCII)"
    if tool.name in names:
        return "name", f"{tool.name!r} is the name of two tools of the request"
    if tool.name in OWN_NAMES or tool.name in taken:
        return "name", f"{tool.name!r} is the name of a tool of this server: choose another"
    if len(tool.description) > MAX_DESCRIPTION:
        return "description", f"has {len(tool.description)} characters; {MAX_DESCRIPTION} are allowed"
    return _problem_of_schema(tool.input_schema)


def _problem_of_schema(schema: dict[str, Any]) -> tuple[str, str] | None:
    if schema.get("type", "object") != "object":
        return "inputSchema", 'must describe an object: "type": "object"'
    if not depth_is_fine(schema):
        return "inputSchema", f"has more than {MAX_DEPTH} objects and arrays inside each other"
    try:
        text = msgspec.json.encode(schema).decode()
    except ValueError as error:
        return "inputSchema", f"is not valid JSON: {error}"
    if storable_json(text) != text:
        return "inputSchema", "must not contain the character U+0000: remove it"
    return None


def outcome_of(content: Sequence[ContentBlock], *, is_error: bool) -> ToolOutcome:
    """The outcome of a call whose client says that its tool has returned this, or has failed with it."""
    if not is_error:
        return ToolOutcome(CallState.SUCCEEDED, tuple(content))
    text = "\n".join(block.text for block in content if isinstance(block, TextBlock))
    message = text[:MAX_ERROR_CHARS] or "the client's tool failed, and the client did not say why"
    return ToolOutcome(CallState.FAILED, tuple(content), ToolError(ErrorCode.TOOL_EXECUTION_FAILED, message))
