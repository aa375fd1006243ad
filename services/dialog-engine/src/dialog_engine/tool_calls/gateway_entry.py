"""What a model is told of the gateway: which servers there are, their operations, what those take. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from dialog_engine.tool_calls.costs import tokens_of_tool
from dialog_engine.tool_calls.ports import OWN_SERVER
from dialog_engine.tool_calls.signatures import purpose, signature
from dialog_engine.tool_calls.slices import Slices
from plugins_contract.catalog import ToolEntry

NAME = "mcp_query"
HELP = "help"
MAX_CHOICES = 50
"""Servers that stand in the schema as choices; more would only be told twice."""
SHAPE = 'Send {"resource": a server, "operation": one of its operations, "params": {its parameters}}.'

_HEAD = (
    f'Run an operation of a connected server. {SHAPE} The operation "{HELP}" lists the operations of a resource; with'
    ' params {"operation": name} it tells that one in full.'
)

Resources = Mapping[str, Sequence[ToolEntry]]
"""The tools by their servers."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What can be told of a tool."""

    name: str
    signature: str
    purpose: str


Operations = Mapping[str, Sequence[Operation]]
"""By their servers."""


class Level(Enum):
    """How much is told of each operation. In this order less and less."""

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
    """What can be told of `tool`."""
    return Operation(tool.tool, signature(tool), purpose(tool))


def entry(catalog: Sequence[ToolEntry], budget_tokens: int) -> Slices[ToolEntry]:
    """What the model is offered. To keep within the budget descriptions are left out first, then parameters, then
    operations; where there are very many servers, some of those. Something is told in any case."""
    resources: dict[str, list[Operation]] = {}
    for tool in catalog:
        resources.setdefault(tool.server, []).append(operation(tool))
        yield
    for level in Level:
        told = _entry(resources, level)
        if tokens_of_tool(told) <= budget_tokens:
            return told
        yield
    shown, told = len(resources), _entry(resources, Level.COUNTS)
    while shown > 1:
        shown = shown * 3 // 4
        first = dict(list(resources.items())[:shown])
        told = _entry(first, Level.COUNTS, left_out=len(resources) - shown)
        if tokens_of_tool(told) <= budget_tokens:
            break
        yield
    return told


def operations(server: str, known: Sequence[Operation], level: Level) -> str:
    """A server with its operations."""
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
    told = [operations(server, known, level) for server, known in resources.items()]
    if left_out:
        told.append(f"and {left_out} more: ask for a resource by its name")
    complete = not left_out and len(resources) <= MAX_CHOICES
    return msgspec.structs.replace(
        INPUT,
        description="\n".join([_HEAD, "", "Resources and their operations:", *told]),
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
"""What is taken: more than is offered, because what does not exist is answered with what does, and some models write
an object as a string."""
