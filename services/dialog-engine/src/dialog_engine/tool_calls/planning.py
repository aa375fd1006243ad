"""Decide what is to be done with a tool call before anything travels: find the tool, read and check the arguments."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import msgspec
from jsonschema import Draft202012Validator
from referencing import Registry

from dialog_engine.model import ToolCall
from dialog_engine.tool_calls import gateway, gateway_entry
from dialog_engine.tool_calls.complaints import MAX_COMPLAINT, complaints
from dialog_engine.tool_calls.ports import ToolSource
from dialog_engine.tool_calls.signatures import signature
from plugins_contract.catalogue import ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolError, ToolOutcome

MAX_CHARACTERS = 256_000
"""Arguments longer than this are not taken: they would travel through the database, Redis and a worker."""
MAX_DEPTH = 64
"""Objects and arrays inside each other. Encoders and validators along the way give up far later, but less politely."""


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
    catalogue = source.tools()
    if not catalogue and isinstance(why := source.find(call.name), ToolError):
        return Unrunnable(call, ToolOutcome(CallState.FAILED, error=why))
    arguments = read_arguments(call.arguments)
    if isinstance(arguments, str):
        return invalid(call, arguments)
    if complaint := check(gateway_entry.INPUT, arguments):
        return invalid(call, f"{complaint}. {gateway_entry.SHAPE}")
    meant = gateway.resolve(arguments, catalogue)
    if isinstance(meant, ToolOutcome):
        return Unrunnable(call, meant, None if meant.error else gateway_entry.INPUT)
    call = replace(call, tool=meant.tool.name)
    if complaint := check(meant.tool, meant.arguments):
        return invalid(
            call, f"params: {complaint.removeprefix('arguments: ')}. The operation is {signature(meant.tool)}"
        )
    return Runnable(call, meant.tool, meant.arguments)


def read_arguments(text: str) -> dict[str, Any] | str:
    """The arguments in the model's text, or what is wrong with it. No text at all means no arguments."""
    if not text.strip():
        return {}
    if len(text) > MAX_CHARACTERS:
        return f"the arguments have {len(text)} characters, {MAX_CHARACTERS} at most are taken. Send less at a time."
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        return f"the arguments are not valid JSON: {error}. Send one JSON object."
    except RecursionError:
        return _TOO_DEEP
    if not isinstance(value, dict):
        return f"the arguments must be one JSON object, not {_json_type(value)}."
    arguments = cast("dict[str, Any]", value)
    return arguments if _depth_is_fine(arguments) else _TOO_DEEP


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


_TOO_DEEP = f"the arguments have more than {MAX_DEPTH} objects and arrays inside each other. Send them flatter."


def _depth_is_fine(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, dict | list)]
        if not level:
            return True
    return False


def _inside(value: object) -> Iterable[object]:
    match value:
        case dict():
            return cast("dict[str, object]", value).values()
        case _:
            return cast("list[object]", value)


def _json_type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case list():
            return "an array"
        case str():
            return "a string"
        case _:
            return "a number"
