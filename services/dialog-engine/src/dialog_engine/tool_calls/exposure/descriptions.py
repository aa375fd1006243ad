"""Tools in words for a model: a tool in one line, and the suggestions in place of a name that does not exist. Pure.

`search(query: string, limit?: integer, order?: "asc"|"desc") - Finds notes.`
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from heapq import nlargest
from itertools import pairwise
from typing import Any, cast

import msgspec

from dialog_engine.tool_calls.bounded_validation import check_limit
from plugins_contract.catalog import ToolEntry

MAX_SENTENCE = 120
"""Characters of the purpose of a tool."""
MAX_CHOICES = 6
"""The most values of an enum that are listed; of a longer one the type is named."""

_SENTENCE_END = re.compile(r"(?<=[.!?。])\s|\n")


def signature(tool: ToolEntry) -> str:
    """The name that the tool has at its server, with its parameters. Optional ones have a question mark."""
    schema = tool.input_schema
    properties = _mapping(schema.get("properties"))
    required = schema.get("required")
    needed = cast("list[object]", required) if isinstance(required, list) else []
    ordered = sorted(properties, key=lambda name: name not in needed)
    parameters = (f"{n}{'' if n in needed else '?'}: {_type(properties[n], schema)}" for n in ordered)
    return f"{tool.label}({', '.join(parameters)})"


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
    """The schema, or the one in the same document that it refers to."""
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


CLOSE = 0.6
"""How similar two names must be, on a scale from 0 to 1, for one to be suggested in place of the other."""
MAX_GUESSES = 3
"""The most names in a "Did you mean"."""

MAX_LISTED = 20
"""The most names that are listed."""
MAX_NAME = 64
"""Characters of a name that are compared."""
MAX_COMPARED = 50
"""How many names are compared letter by letter: those that share most pairs of letters with the wanted one."""


def suggestion(name: str, names: Iterable[str], what: str, *, guess: bool = True) -> str:
    """A message that lists `names`, which `what` describes, with those that are most similar to `name` first.

    With `guess`, a "Did you mean" names the similar ones.
    """
    known = [*names]
    close = similar_names(name, known)
    listed = [*close, *(other for other in known if other not in close)][:MAX_LISTED]
    more = f", and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
    meant = f"Did you mean {' or '.join(close[:MAX_GUESSES])}? " if close and guess else ""
    return f"{meant}{what}: {', '.join(listed) or 'none at the moment'}{more}."


def similar_names(name: str, names: Sequence[str]) -> list[str]:
    """The names that are similar to `name`, the most similar first. The server, before `__`, may be another."""
    server, own = _parts(name)
    matcher = SequenceMatcher(b=own)
    similarity: dict[str, tuple[float, bool]] = {}
    for other in _closest(own, names):
        its_server, its_own = _parts(other)
        score = _similarity(matcher, its_own)
        if not server and its_server:
            score = max(score, _similarity(matcher, other[:MAX_NAME].lower()))
        if score:
            similarity[other] = score, server == its_server
    return sorted(similarity, key=similarity.__getitem__, reverse=True)[:MAX_LISTED]


def _closest(name: str, names: Sequence[str]) -> Sequence[str]:
    if len(names) <= MAX_COMPARED:
        return names
    check_limit()
    wanted = _pairs(name)
    return nlargest(MAX_COMPARED, names, key=lambda other: len(wanted & _pairs(_parts(other)[1])))


def _pairs(name: str) -> set[str]:
    return {*map("".join, pairwise(name)), *name[:1]}


def _parts(name: str) -> tuple[str, str]:
    """The server, or "" if none is named, and the tool's own name."""
    first, separator, own = name[:MAX_NAME].lower().partition("__")
    return (first, own) if separator else ("", first)


def _similarity(matcher: SequenceMatcher[str], name: str) -> float:
    """How similar the name is to that of the matcher; 0 below CLOSE."""
    matcher.set_seq1(name)
    if matcher.real_quick_ratio() < CLOSE or matcher.quick_ratio() < CLOSE:
        return 0.0
    ratio = matcher.ratio()
    return ratio if ratio >= CLOSE else 0.0
