"""Which input schemas of tools can be used: one that is not sound, or too large, would spoil every request. Pure."""

import json
import math
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import unquote

from jsonschema import Draft202012Validator, SchemaError

MAX_SCHEMA_BYTES = 32 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_SUBSCHEMAS = 10_000
"""The most subschemas that may apply to one value. References to references double them at each level."""


def unusable_schema(schema: dict[str, Any]) -> str | None:
    """Why no tool with this input schema is offered; None when it is sound."""
    if schema.get("type") != "object":
        return "the input schema is not of type object"
    size = len(json.dumps(schema, ensure_ascii=False).encode())
    if size > MAX_SCHEMA_BYTES:
        return f"the input schema is too large: {size} bytes of {MAX_SCHEMA_BYTES}"
    for depth, key, value in members(schema):
        if depth > MAX_SCHEMA_DEPTH:
            return f"the input schema is nested more than {MAX_SCHEMA_DEPTH} deep"
        if key in ("$ref", "$dynamicRef") and isinstance(value, str) and not _resolves(schema, value):
            return f"the input schema refers to {value[:200]!r}, which is not within it"
    if _subschemas(schema) > MAX_SUBSCHEMAS:
        return f"more than {MAX_SUBSCHEMAS} subschemas of the input schema apply to one value"
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"the input schema is not valid JSON Schema: {error.message[:200]}"
    return None


def members(schema: dict[str, Any]) -> Iterator[tuple[int, str, Any]]:
    """Every key and value in the JSON with its depth. Not recursive, because the depth is not checked yet."""
    waiting: list[tuple[int, Any]] = [(1, schema)]
    while waiting:
        depth, node = waiting.pop()
        if isinstance(node, dict):
            for key, value in cast("dict[str, Any]", node).items():
                yield depth, key, value
                waiting.append((depth + 1, value))
        elif isinstance(node, list):
            waiting += ((depth + 1, value) for value in cast("list[Any]", node))


def _subschemas(schema: dict[str, Any]) -> float:
    """The largest number of subschemas that apply to one value; infinite when a reference leads to itself."""
    counts: dict[int, float] = {}

    def count(node: Any) -> float:
        if not isinstance(node, dict):
            return 0
        fields = cast("dict[str, Any]", node)
        if id(fields) not in counts:
            counts[id(fields)] = math.inf  # for as long as it is counted: another visit is a reference to itself
            counts[id(fields)] = 1 + sum(map(count, _applied(schema, fields)))
        return counts[id(fields)]

    return max(count(schema), *(count(node) for _, _, node in members(schema)), 0)


def _applied(schema: dict[str, Any], node: dict[str, Any]) -> Iterator[Any]:
    """The subschemas of `node` that apply to the same value as `node`."""
    for key in ("$ref", "$dynamicRef"):
        if isinstance(reference := node.get(key), str) and _is_pointer(reference):
            yield _target(schema, reference)
    for key in ("not", "if", "then", "else"):
        yield node.get(key)
    for key in ("allOf", "anyOf", "oneOf"):
        if isinstance(options := node.get(key), list):
            yield from cast("list[Any]", options)
    if isinstance(dependent := node.get("dependentSchemas"), dict):
        yield from cast("dict[str, Any]", dependent).values()


def _resolves(schema: dict[str, Any], reference: str) -> bool:
    if _is_pointer(reference):
        return _target(schema, reference) is not None
    return reference.startswith("#")  # an anchor


def _is_pointer(reference: str) -> bool:
    return reference == "#" or reference.startswith("#/")


def _target(schema: dict[str, Any], pointer: str) -> Any:
    """What a JSON pointer within the schema leads to; None when it leads nowhere."""
    node: Any = schema
    if pointer == "#":
        return node
    # A JSON pointer (RFC 6901) in a URI fragment. Some generators refer to the branches of a union by index.
    for part in unquote(pointer[2:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            node = cast("list[Any]", node)[int(key)] if isinstance(node, list) else node[key]
        except (LookupError, TypeError, ValueError):
            return None
    return node
