"""One tool in place of all: `mcp_query {resource, operation, params}`, a server, one of its tools, and its arguments.

`entry` is the tool that the model is offered: its description lists the servers and their operations as far as the
budget goes. `resolve` finds the tool that a call stands for. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, cast

import msgspec

from dialog_engine.context import tokens_of_text, tokens_of_tool
from dialog_engine.tool_calls.arguments import read_arguments
from dialog_engine.tool_calls.exposure.descriptions import MAX_LISTED, purpose, signature, suggestion
from dialog_engine.tool_calls.ports import OWN_SERVER
from plugins_contract.catalog import ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome

NAME = "mcp_query"
HELP = "help"
MAX_CHOICES = 50
"""The most servers that the schema lists as an enum. The description lists them too."""
SHAPE = 'Send {"resource": a server, "operation": one of its operations, "params": {its parameters}}.'

_HEAD = (
    f'Run an operation of a connected server. {SHAPE} The operation "{HELP}" lists the operations of a resource; with'
    ' params {"operation": name} it tells that one in full.'
)

Resources = Mapping[str, Sequence[ToolEntry]]
"""The tools by their servers."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The parts of the description of a tool."""

    name: str
    signature: str
    purpose: str


Operations = Mapping[str, Sequence[Operation]]
"""By their servers."""


class Level(Enum):
    """How much the description says of each operation, in decreasing order."""

    PURPOSES = auto()
    SIGNATURES = auto()
    NAMES = auto()
    COUNTS = auto()


def by_server(catalog: Iterable[ToolEntry]) -> Resources:
    """The tools by their servers, in the catalog's order."""
    resources: dict[str, list[ToolEntry]] = {}
    for tool in catalog:
        resources.setdefault(tool.server, []).append(tool)
    return resources


def operation(tool: ToolEntry) -> Operation:
    """The parts of the description of `tool`."""
    return Operation(tool.label, signature(tool), purpose(tool))


def entry(catalog: Sequence[ToolEntry], budget_tokens: int) -> ToolEntry:
    """The tool that the model is offered.

    To stay within the budget, purposes are left out first, then parameters, then operations, and of very many servers
    the last ones. At least one server is always listed.
    """
    resources: dict[str, list[Operation]] = {}
    for tool in catalog:
        resources.setdefault(tool.server, []).append(operation(tool))
    for level in Level:
        described = _entry(resources, level)
        if tokens_of_tool(described) <= budget_tokens:
            return described
    shown, described = len(resources), _entry(resources, Level.COUNTS)
    while shown > 1:
        shown = shown * 3 // 4
        first = dict(list(resources.items())[:shown])
        described = _entry(first, Level.COUNTS, left_out=len(resources) - shown)
        if tokens_of_tool(described) <= budget_tokens:
            break
    return described


def operations(server: str, known: Sequence[Operation], level: Level) -> str:
    """The lines about one server and its operations."""
    match level:
        case Level.COUNTS:
            return f"{server}: {len(known)} operations"
        case Level.NAMES:
            return f"{server}: {', '.join(each.name for each in known)}"
        case Level.SIGNATURES:
            lines = [each.signature for each in known]
        case Level.PURPOSES:
            lines = [f"{each.signature} - {each.purpose}".removesuffix(" - ") for each in known]
    return "\n".join([f"{server}:", *(f"  {line}" for line in lines)])


def _entry(resources: Operations, level: Level, *, left_out: int = 0) -> ToolEntry:
    lines = [operations(server, known, level) for server, known in resources.items()]
    if left_out:
        lines.append(f"and {left_out} more: ask for a resource by its name")
    complete = not left_out and len(resources) <= MAX_CHOICES
    return msgspec.structs.replace(
        INPUT,
        description="\n".join([_HEAD, "", "Resources and their operations:", *lines]),
        input_schema={
            "type": "object",
            "properties": {
                "resource": {"type": "string"} | ({"enum": [*resources]} if complete else {}),
                "operation": {"type": "string"},
                "params": {"type": "object", "description": "The parameters of the operation."},
            },
            "required": ["resource", "operation"],
        },
    )


INPUT = ToolEntry(
    name=NAME,
    server=OWN_SERVER,
    tool=NAME,
    input_schema={
        "type": "object",
        "properties": {
            "resource": {"type": "string"},
            "operation": {"type": "string"},
            "params": {"type": ["object", "string", "null"]},
        },
        "required": ["resource", "operation"],
        "additionalProperties": False,
    },
)
"""The schema that calls are validated against. It accepts more than the offered one: an unknown server is answered with
those that exist, and some models write an object as a string."""


HELP_TOKENS = 2_000
"""The size of the longest list of a server's operations in an answer."""
MAX_NAMES = 50
"""The most operations of a server that are named when their list would be too long."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The tool and the arguments that a call of the gateway stands for."""

    tool: ToolEntry
    arguments: dict[str, Any]


def resolve(arguments: Mapping[str, Any], catalog: Sequence[ToolEntry]) -> Resolved | ToolOutcome:
    """Resolve the valid arguments of a call of the gateway.

    Returns an outcome when they stand for no tool: the help, or an error that names what exists instead.
    """
    resource, name = str(arguments["resource"]), str(arguments["operation"])
    resources = by_server(catalog)
    tools = resources.get(resource)
    if tools is None:
        return _no_resource(resource, resources)
    params = params_of(arguments)
    if isinstance(params, str):
        return _failure(ErrorCode.INVALID_ARGUMENTS, params)
    if tool := _named(name, tools):
        return Resolved(tool, params)
    if name == HELP:
        return _help(resource, params, resources)
    return _no_operation(name, resource, resources)


def params_of(arguments: Mapping[str, Any]) -> dict[str, Any] | str:
    """The arguments for the tool within those for the gateway, or a message that says what is wrong with them."""
    params = arguments.get("params")
    if isinstance(params, str):
        read = read_arguments(params)
        return f"params: {read}" if isinstance(read, str) else read
    if params is None:
        return {}
    return cast("dict[str, Any]", params) if isinstance(params, dict) else "params: must be an object"


def _named(name: str, tools: Iterable[ToolEntry]) -> ToolEntry | None:
    """The tool with that name, as the server calls it or as the catalog does."""
    return next((tool for tool in tools if name in (tool.label, tool.name, tool.tool)), None)


def _help(resource: str, params: Mapping[str, Any], resources: Resources) -> ToolOutcome:
    tools = resources[resource]
    if asked := params.get("operation"):
        tool = _named(str(asked), tools)
        return _in_full(tool) if tool else _no_operation(str(asked), resource, resources)
    known = [operation(tool) for tool in tools]
    lists = (operations(resource, known, level) for level in (Level.PURPOSES, Level.SIGNATURES, Level.NAMES))
    fitting = next((text for text in lists if tokens_of_text(text) <= HELP_TOKENS), None)
    return _success(fitting or f"{resource}: {_named_some([tool.label for tool in tools])}")


def _in_full(tool: ToolEntry) -> ToolOutcome:
    schema = msgspec.json.encode(tool.input_schema).decode()
    return _success(f"{signature(tool)}\n{tool.description}\nparams as JSON schema: {schema}")


def _named_some(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f", and {more} more" if more > 0 else "")


def _no_resource(resource: str, resources: Resources) -> ToolOutcome:
    message = f"there is no resource {resource[:100]!r}. {suggestion(resource, resources, 'Resources')}"
    return _failure(ErrorCode.RESOURCE_NOT_FOUND, message)


def _no_operation(name: str, resource: str, resources: Resources) -> ToolOutcome:
    elsewhere = [server for server, tools in resources.items() if _named(name, tools)][:MAX_LISTED]
    there = suggestion(name, (tool.label for tool in resources[resource]), "Its operations", guess=not elsewhere)
    hint = f"It is one of {', '.join(elsewhere)}. " if elsewhere else ""
    return _failure(ErrorCode.TOOL_NOT_FOUND, f"{resource} has no operation {name[:100]!r}. {hint}{there}")


def _success(text: str) -> ToolOutcome:
    return ToolOutcome(CallState.SUCCEEDED, (TextBlock(text),), attempts=1)


def _failure(code: ErrorCode, message: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.FAILED, code, message)
