"""One tool in the place of all: `mcp_query {resource, operation, params}`, a server, one of its tools, its arguments.

Here is found what such a call stands for. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from dialog_engine.tool_calls.arguments import read_arguments
from dialog_engine.tool_calls.costs import tokens_of_text
from dialog_engine.tool_calls.gateway_entry import HELP, Level, Resources, by_server, operation, operations
from dialog_engine.tool_calls.nearest import MAX_LISTED, instead
from dialog_engine.tool_calls.signatures import signature
from plugins_contract.catalog import ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome

HELP_TOKENS = 2_000
"""The longest list of a server's operations that an answer holds."""
MAX_NAMES = 50
"""Operations of a server that are named where a list of them would be too long."""


@dataclass(frozen=True, slots=True)
class Meant:
    """The tool, and the arguments for it, that a call of the gateway stands for."""

    tool: ToolEntry
    arguments: dict[str, Any]


def resolve(arguments: Mapping[str, Any], catalog: Sequence[ToolEntry]) -> Meant | ToolOutcome:
    """What arguments that fit the gateway's schema stand for; or the outcome of the call, where that is no tool: help,
    or what exists in the place of what does not."""
    resource, name = str(arguments["resource"]), str(arguments["operation"])
    resources = by_server(catalog)
    tools = resources.get(resource)
    if tools is None:
        return _no_resource(resource, resources)
    params = params_of(arguments)
    if isinstance(params, str):
        return _fails(ErrorCode.INVALID_ARGUMENTS, params)
    if tool := _named(name, tools):
        return Meant(tool, params)
    if name == HELP:
        return _help(resource, params, resources)
    return _no_operation(name, resource, resources)


def params_of(arguments: Mapping[str, Any]) -> dict[str, Any] | str:
    """The arguments for the tool in those for the gateway, or what is wrong with them."""
    params = arguments.get("params")
    if isinstance(params, str):
        read = read_arguments(params)
        return f"params: {read}" if isinstance(read, str) else read
    if params is None:
        return {}
    return cast("dict[str, Any]", params) if isinstance(params, dict) else "params: must be an object"


def _named(name: str, tools: Iterable[ToolEntry]) -> ToolEntry | None:
    """The tool of that name: the server's own, or the one it has among the tools of all servers."""
    return next((tool for tool in tools if name in (tool.tool, tool.name)), None)


def _help(resource: str, params: Mapping[str, Any], resources: Resources) -> ToolOutcome:
    tools = resources[resource]
    if asked := params.get("operation"):
        tool = _named(str(asked), tools)
        return _in_full(tool) if tool else _no_operation(str(asked), resource, resources)
    known = [operation(tool) for tool in tools]
    told = (operations(resource, known, level) for level in (Level.PURPOSES, Level.SIGNATURES, Level.NAMES))
    fitting = next((text for text in told if tokens_of_text(text) <= HELP_TOKENS), None)
    return _says(fitting or f"{resource}: {_named_some([tool.tool for tool in tools])}")


def _in_full(tool: ToolEntry) -> ToolOutcome:
    schema = msgspec.json.encode(tool.input_schema).decode()
    return _says(f"{signature(tool)}\n{tool.description}\nparams as JSON schema: {schema}")


def _named_some(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f", and {more} more" if more > 0 else "")


def _no_resource(resource: str, resources: Resources) -> ToolOutcome:
    said = f"there is no resource {resource[:100]!r}. {instead(resource, resources, 'Resources')}"
    return _fails(ErrorCode.RESOURCE_NOT_FOUND, said)


def _no_operation(name: str, resource: str, resources: Resources) -> ToolOutcome:
    elsewhere = [server for server, tools in resources.items() if _named(name, tools)][:MAX_LISTED]
    there = instead(name, (tool.tool for tool in resources[resource]), "Its operations", guess=not elsewhere)
    hint = f"It is one of {', '.join(elsewhere)}. " if elsewhere else ""
    return _fails(ErrorCode.TOOL_NOT_FOUND, f"{resource} has no operation {name[:100]!r}. {hint}{there}")


def _says(text: str) -> ToolOutcome:
    return ToolOutcome(CallState.SUCCEEDED, (TextBlock(text),), attempts=1)


def _fails(code: ErrorCode, message: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.FAILED, code, message)
