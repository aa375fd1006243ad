"""Decide what is to be done with a tool call before anything travels: find the tool, check the arguments."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from referencing import Registry

from dialog_engine.model import ToolCall
from dialog_engine.tool_calls import gateway, gateway_entry
from dialog_engine.tool_calls.arguments import MAX_COMPLAINT, complaints, read_arguments
from dialog_engine.tool_calls.ports import ToolSource
from dialog_engine.tool_calls.signatures import signature
from plugins_contract.catalog import ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolError, ToolOutcome


@dataclass(frozen=True, slots=True)
class Runnable:
    """The call fits its tool and can be requested."""

    call: ToolCall
    tool: ToolEntry
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unrunnable:
    """The call is answered here and now. `tool` is the tool of the engine's own that was run; None when nothing was."""

    call: ToolCall
    outcome: ToolOutcome
    tool: ToolEntry | None = None


def plan(call: ToolCall, source: ToolSource) -> Runnable | Unrunnable:
    """What to do with `call`. The call that comes back names the tool that is meant."""
    if call.name == gateway_entry.NAME:
        return _through_gateway(call, source)
    tool = source.find(call.name)
    if isinstance(tool, ToolError):
        return Unrunnable(call, ToolOutcome(CallState.FAILED, error=tool))
    arguments = read_arguments(call.arguments)
    if isinstance(arguments, str):
        return invalid(call, arguments)
    complaint = check(tool, arguments)
    return invalid(call, complaint) if complaint else Runnable(call, tool, arguments)


def _through_gateway(call: ToolCall, source: ToolSource) -> Runnable | Unrunnable:
    catalog = source.tools()
    if not catalog and isinstance(why := source.find(call.name), ToolError):
        return Unrunnable(call, ToolOutcome(CallState.FAILED, error=why))
    arguments = read_arguments(call.arguments)
    if isinstance(arguments, str):
        return invalid(call, arguments)
    if complaint := check(gateway_entry.INPUT, arguments):
        return invalid(call, f"{complaint}. {gateway_entry.SHAPE}")
    meant = gateway.resolve(arguments, catalog)
    if isinstance(meant, ToolOutcome):
        return Unrunnable(call, meant, None if meant.error else gateway_entry.INPUT)
    call = replace(call, tool=meant.tool.name)
    if complaint := check(meant.tool, meant.arguments):
        return invalid(
            call, f"params: {complaint.removeprefix('arguments: ')}. The operation is {signature(meant.tool)}"
        )
    return Runnable(call, meant.tool, meant.arguments)


def check(tool: ToolEntry, arguments: dict[str, Any]) -> str | None:
    """How `arguments` break the schema of `tool`, or None. The text names each field.

    Nothing is mended silently: a number written as text is told to the model, which alone knows what it meant.

    A schema that is broken itself, or refers to something outside of it, lets nothing pass.
    """
    try:
        return complaints(_validator(msgspec.json.encode(tool.input_schema)).iter_errors(arguments))
    except Exception as broken:  # noqa: BLE001 -- a schema is anybody's text, and jsonschema raises whatever it trips over
        reason = str(broken)[:MAX_COMPLAINT]
        return f"they cannot be checked, because the input schema of {tool.name} is broken: {reason}. Tell the user."


@lru_cache(maxsize=1024)
def _validator(schema: bytes) -> Draft202012Validator:
    # An empty registry: a schema must never make us fetch something.
    return Draft202012Validator(msgspec.json.decode(schema), registry=Registry())


def invalid(call: ToolCall, complaint: str) -> Unrunnable:
    """The call is answered with what is wrong with it."""
    return Unrunnable(call, ToolOutcome.failure(CallState.FAILED, ErrorCode.INVALID_ARGUMENTS, complaint))
