"""Values of parameters that are written as text, in the types that the tool's schema asks for."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

_ANY = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_TEXT = frozenset({"string"})
_WORDS = {"true": True, "false": False, "none": None, "null": None}
_MAX_DEPTH = 8
_LINE_BREAKS = ("\n", "\r\n")
_CDATA = re.compile(r"<!\[CDATA\[((?:(?!\]\]>).)*)\]\]>", re.DOTALL)
_ALL_CDATA = re.compile(rf"\s*(?:{_CDATA.pattern})+\s*", re.DOTALL)

Schema = Mapping[str, Any]


def is_text(schema: Schema, name: str) -> bool:
    """Whether the value of that parameter may be plain text: its end is then where its closing tag is."""
    return "string" in _types(schema, name)


def typed(schema: Schema, name: str, text: str) -> Any:
    """The value that `text` is. `schema` is that of all the tool's arguments.

    Text stays text where only text is allowed; elsewhere it is read as JSON, if that gives a type that is allowed.
    What fits nothing stays text: checking the arguments will say so.
    """
    types = _types(schema, name)
    if types == _TEXT:
        return text
    word = text.strip()
    try:
        value = _WORDS[word.lower()] if word.lower() in _WORDS else json.loads(word, strict=False)
    except (ValueError, RecursionError):
        return text
    return value if _type_of(value) & (types - _TEXT) else text


def as_meant(text: str) -> str:
    """A value without what sets it off from its tags: a CDATA section around all of it, and the line breaks of one
    that is written on lines of its own."""
    text = without_cdata(text)
    line_break = next((each for each in _LINE_BREAKS if text.startswith(each)), "")
    return text.removeprefix(line_break).removesuffix(line_break)


def with_layout(text: str) -> str:
    """`text` such that `as_meant` gives it back, if it is not a CDATA section itself."""
    return f"\n{text}\n" if text.startswith(_LINE_BREAKS) else text


def without_cdata(text: str) -> str:
    """What stands in the CDATA section, or the sections one right behind the other, that `text` is; else `text`."""
    return "".join(_CDATA.findall(text)) if _ALL_CDATA.fullmatch(text) else text


def _types(schema: Schema, name: str) -> frozenset[str]:
    entry = _found(schema, "properties", name)
    return frozenset(_allowed(entry, schema, _MAX_DEPTH)) or _ANY


def _allowed(entry: object, root: Schema, depth: int) -> Iterator[str]:
    """The types that a schema allows; nothing, if it does not say."""
    if not isinstance(entry, Mapping) or depth == 0:
        return
    match cast("Schema", entry):
        case {"type": str(kind)}:
            yield kind
        case {"type": [*kinds]}:
            yield from (kind for kind in kinds if isinstance(kind, str))
        case {"enum": [*values]}:
            yield from (kind for value in values for kind in _type_of(value))
        case {"const": value}:
            yield from _type_of(value)
        case {"$ref": str(reference)}:
            yield from _allowed(_found(root, *reference.removeprefix("#/").split("/")), root, depth - 1)
        case fields:
            for key in ("anyOf", "oneOf", "allOf"):
                options = fields.get(key)
                for option in cast("list[object]", options) if isinstance(options, list) else ():
                    yield from _allowed(option, root, depth - 1)


def _found(place: object, *path: str) -> object:
    for step in path:
        place = cast("Schema", place).get(step) if isinstance(place, Mapping) else None
    return place


def _type_of(value: object) -> frozenset[str]:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})
