"""A tool in one line: its name, what it takes, and what it is for. Pure.

`search(query: string, limit?: integer, order?: "asc"|"desc") - Finds notes.`
"""

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from plugins_contract.catalog import ToolEntry

MAX_SENTENCE = 120
"""Characters of a description."""
MAX_CHOICES = 6
"""Values of an enum that are listed; more are told as their type."""

_SENTENCE_END = re.compile(r"(?<=[.!?。])\s|\n")


def signature(tool: ToolEntry) -> str:
    """What the server calls the tool, with its parameters; those that may be left out have a question mark."""
    schema = tool.input_schema
    properties = _mapping(schema.get("properties"))
    required = schema.get("required")
    needed = cast("list[object]", required) if isinstance(required, list) else []
    ordered = sorted(properties, key=lambda name: name not in needed)
    parameters = (f"{n}{'' if n in needed else '?'}: {_type(properties[n], schema)}" for n in ordered)
    return f"{tool.tool}({', '.join(parameters)})"


def purpose(tool: ToolEntry) -> str:
    """The first sentence of the tool's description, or its title; it may be empty."""
    sentence = " ".join(_SENTENCE_END.split(tool.description.strip(), maxsplit=1)[0].split())
    sentence = sentence or tool.title or ""
    return sentence if len(sentence) <= MAX_SENTENCE else f"{sentence[: MAX_SENTENCE - 1].rstrip()}…"


def _type(schema: object, root: Mapping[str, Any], depth: int = 0) -> str:
    match _resolved(schema, root):
        case {"const": value}:
            return _literal(value)
        case {"enum": [*values]} if 0 < len(values) <= MAX_CHOICES:
            return "|".join(map(_literal, values))
        case {"type": "array", "items": items} if depth == 0:
            inner = _type(items, root, 1)
            return f"({inner})[]" if "|" in inner else f"{inner}[]"
        case {"type": str(name)}:
            return name
        case {"type": [*names]}:
            return "|".join(map(str, names))
        case {"anyOf": [*options]} | {"oneOf": [*options]} if options and depth == 0:
            return "|".join(dict.fromkeys(_type(option, root, 1) for option in options))
        case _:
            return "any"


def _resolved(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema, or the one in the same document that it points at."""
    plain = _mapping(schema)
    reference = plain.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return plain
    target: object = root
    for part in reference.removeprefix("#/").split("/"):
        target = _mapping(target).get(part)
    return _mapping(target)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _literal(value: object) -> str:
    return msgspec.json.encode(value).decode()
