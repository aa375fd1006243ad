"""Selects one of the offered tools and fills in the arguments that its schema requires."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from jsonschema import Draft202012Validator, SchemaError
from referencing.exceptions import Unresolvable

from examples.demo_model.conversation import Arguments, Tool, ToolUse

ALIASES: dict[str, tuple[str, ...]] = {
    "a": ("x", "left", "first"),
    "b": ("y", "right", "second"),
    "city": ("location", "place"),
    "counter": ("counter_name", "name"),
    "expression": ("expr", "formula"),
    "kilobytes": ("size_kb", "kb"),
    "motif": ("pattern", "subject", "prompt"),
    "note": ("text", "content", "message"),
    "seconds": ("duration", "duration_seconds"),
    "text": ("message", "content"),
    "timezone": ("time_zone", "tz"),
}
"""Other names of parameters with the same meaning."""


def base_name(name: str) -> str:
    """The name of a tool without its server: `get_current_time` for `time__get_current_time`."""
    return name.rsplit("__", 1)[-1]


def words(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", base_name(name)).replace("_", " ").replace("-", " ").lower().split()


def named(name: str, stems: Sequence[str]) -> bool:
    """Whether the words of one of the stems occur in this tool's name."""
    return any(_within(words(stem), words(name)) for stem in stems)


class Toolbox:
    """The tools of one request."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools

    def use(self, stems: Sequence[str], needed: Mapping[str, Any], **hints: Any) -> ToolUse | None:
        """A call of the best tool for a stem that accepts every `needed` value; `hints` are added if they fit."""
        for tool in self._candidates(stems, by_description=bool(needed)):
            arguments = fill(tool.parameters, needed, hints)
            if arguments is not None:
                return ToolUse(tool.name, arguments)
        return None

    def direct(self, name: str, arguments: Arguments) -> ToolUse | None:
        """A call of the tool that has exactly this name, with exactly these arguments, if it accepts them."""
        for tool in self._tools:
            if name.lower() in (tool.name.lower(), base_name(tool.name).lower()) and accepts(
                tool.parameters, arguments
            ):
                return ToolUse(tool.name, arguments)
        return None

    def _candidates(self, stems: Sequence[str], *, by_description: bool) -> Iterator[Tool]:
        """Best first: the same name, then its words in the name, then in the description.

        A description is too general to choose by it alone: it counts only if values must fit the parameters as well.
        """
        for stem in stems:
            yield from (tool for tool in self._tools if words(tool.name) == words(stem))
        yield from (tool for tool in self._tools if named(tool.name, stems))
        if by_description:
            spoken = [" ".join(words(stem)) for stem in stems]
            yield from (
                tool for tool in self._tools if any(re.search(rf"\b{s}\b", tool.description.lower()) for s in spoken)
            )


def fill(schema: Mapping[str, Any], needed: Mapping[str, Any], hints: Mapping[str, Any]) -> Arguments | None:
    """Arguments that satisfy the schema and contain every needed value, or None. Required values are never invented."""
    if not _well_formed(schema):
        return None
    properties: dict[str, Any] = schema.get("properties", {})
    arguments: Arguments = {}
    for fact, value in (*needed.items(), *hints.items()):
        name = next((name for name in (fact, *ALIASES.get(fact, ())) if name in properties), None)
        if name is not None:
            arguments[name] = suit(value, properties[name])
        elif fact in needed:
            return None
    for name in schema.get("required", ()):
        match properties.get(name):
            case {"default": default} if name not in arguments:
                arguments[name] = default
            case _:
                pass
    if accepts(schema, arguments):
        return arguments
    return fill(schema, needed, {}) if hints else None


def suit(value: Any, schema: Mapping[str, Any] | bool) -> Any:
    """The value converted to the property's type, limits and spelling of choices."""
    if isinstance(schema, bool):
        return value
    for choice in schema.get("enum", ()):
        if str(choice).lower() == str(value).lower():
            return choice
    types = {schema.get("type"), *(option.get("type") for option in schema.get("anyOf", ()))}
    if isinstance(value, int | float) and types & {"integer", "number"}:
        value = min(max(value, schema.get("minimum", value)), schema.get("maximum", value))
        return int(value) if float(value).is_integer() else value
    return str(value) if "string" in types else value


def accepts(schema: Mapping[str, Any], arguments: Arguments) -> bool:
    """Whether the arguments satisfy the schema; an invalid schema accepts nothing."""
    try:
        return _well_formed(schema) and Draft202012Validator(_without_patterns(schema)).is_valid(arguments)
    except (Unresolvable, RecursionError):
        return False


_OF_NAMES = ("properties", "$defs", "definitions", "dependentSchemas", "dependentRequired")
"""Keywords under which the keys are names, and no keywords."""
_VALUES = ("const", "enum", "default", "examples")


def _without_patterns(part: Any, *, is_named: bool = False) -> Any:
    """The schema without regular expressions: it comes from anybody, and some take longer than anybody waits. Where a
    part `is_named`, its keys are names."""
    if isinstance(part, list):
        return [_without_patterns(each) for each in cast("list[Any]", part)]
    if not isinstance(part, dict):
        return part
    return {
        key: value
        if key in _VALUES and not is_named
        else _without_patterns(value, is_named=key in _OF_NAMES and not is_named)
        for key, value in cast("dict[str, Any]", part).items()
        if is_named or key not in ("pattern", "patternProperties")
    }


def _well_formed(schema: Mapping[str, Any]) -> bool:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return False
    return True


def _within(part: Sequence[str], whole: Sequence[str]) -> bool:
    return any(list(part) == list(whole[at : at + len(part)]) for at in range(len(whole) - len(part) + 1))
