"""Values and JSON objects in the text of a call, with the mistakes that models make in them."""

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, cast

import msgspec

from dialog_engine.tool_calls.arguments import MAX_CHARACTERS
from dialog_engine.tool_calls.prompt_mode.source import CutError, Reading, Source

_ANY = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_TEXT = frozenset({"string"})
_WORDS = {"true": True, "false": False, "none": None, "null": None}
_LINE_BREAKS = ("\n", "\r\n")
_CDATA, _CDATA_END = "<![CDATA[", "]]>"

Schema = Mapping[str, Any]


class Parameters:
    """The parameters of a tool, by the JSON Schema of its arguments."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._known: dict[str, frozenset[str]] = {}
        """The types of the parameters that were asked for: finding them reads the whole schema of each."""

    def is_text(self, name: str) -> bool:
        """Whether that parameter may be plain text. Its value then ends at its closing tag, whatever is in it."""
        return "string" in self._types(name)

    def is_known(self, name: str) -> bool:
        """Whether the schema names that parameter."""
        return _found(self._schema, "properties", name) is not None

    def typed(self, name: str, text: str) -> Any:
        """Convert `text` to the type that the schema asks for.

        It stays text if only text is allowed. Otherwise it is parsed as JSON if that gives an allowed type. Text that
        fits no type stays text, and the validation of the arguments reports it.
        """
        types = self._types(name)
        if types == _TEXT:
            return text
        word = text.strip()
        try:
            value = _WORDS[word.lower()] if word.lower() in _WORDS else json.loads(word, strict=False)
        except (ValueError, RecursionError):
            return text
        return value if _type_of(value) & (types - _TEXT) else text

    def _types(self, name: str) -> frozenset[str]:
        if not self.is_known(name):
            return _ANY
        if name not in self._known:
            entry = _found(self._schema, "properties", name)
            self._known[name] = frozenset(_allowed(entry, self._schema)) or _ANY
        return self._known[name]


def trimmed(text: str) -> str:
    """A value without a CDATA section around it, and without the line breaks next to its tags."""
    text = without_cdata(text)
    line_break = next((each for each in _LINE_BREAKS if text.startswith(each)), "")
    return text.removeprefix(line_break).removesuffix(line_break)


def with_layout(text: str) -> str:
    """`text` in a form from which `trimmed` returns it, unless it is a CDATA section itself."""
    return f"\n{text}\n" if text.startswith(_LINE_BREAKS) else text


def without_cdata(text: str) -> str:
    """The content of `text` if it consists of one or more CDATA sections; otherwise `text`."""
    *sections, rest = text.strip().split(_CDATA_END)
    if not sections or rest or not all(section.startswith(_CDATA) for section in sections):
        return text
    return "".join(section.removeprefix(_CDATA) for section in sections)


def _allowed(entry: object, root: Schema) -> Iterator[str]:
    """The types that a schema allows; none if it names no types. Each subschema is read once."""
    waiting, seen = [entry], set[int]()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Mapping) or id(cast("object", node)) in seen:
            continue
        seen.add(id(cast("object", node)))
        match cast("Schema", node):
            case {"type": str(kind)}:
                yield kind
            case {"type": [*kinds]}:
                yield from (kind for kind in kinds if isinstance(kind, str))
            case {"enum": [*values]}:
                yield from (kind for value in values for kind in _type_of(value))
            case {"const": value}:
                yield from _type_of(value)
            case {"$ref": str(reference)}:
                waiting.append(_found(root, *reference.removeprefix("#/").split("/")))
            case fields:
                for key in ("anyOf", "oneOf", "allOf"):
                    options = fields.get(key)
                    waiting += cast("list[object]", options) if isinstance(options, list) else ()


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


QUOTE_MISSING = (
    "a quote is missing in its arguments, or in those of a call before it, so that their end is not certain."
    " Write these calls again."
)

_FENCE = "```"
_LANGUAGE = re.compile(r"\w*")


def as_object(text: str) -> str | None:
    """The JSON object in `text`, or None. Valid JSON is returned as it is written.

    Accepted are a code fence or a CDATA section around the object, line breaks inside its strings, and XML entities in
    place of its characters. A text that is too long to be arguments is not read.
    """
    if len(text) > MAX_CHARACTERS:
        return None
    text = without_cdata(text).strip()
    if _is_object(text):
        return text
    return _rewritten(_unfenced(text)) or _rewritten(text, unescaped=True)


def json_until(source: Source, *closers: str) -> Reading[tuple[str, str]]:
    """Read JSON up to its closing tag. Returns the text and the tag, or "" if the reply ended before it.

    Tags inside strings do not count. If that gives no JSON, a quote is probably missing: then the first tag counts, so
    that the next calls are still read, but no call from here on may run, because it could be part of a string.
    """
    try:
        text, closer = yield from source.until(*closers, strings=not source.doubt)
    except CutError as cut:
        text, closer = cut.text, ""
    inside = [(at, tag) for tag in closers if (at := text.find(tag)) >= 0]
    if not inside or (len(text) <= MAX_CHARACTERS and (_is_json(text) or as_object(text) is not None)):
        return text, closer
    at, tag = min(inside)
    source.put_back(text[at + len(tag) :] + closer)
    source.doubt = QUOTE_MISSING
    return text[:at], tag


def _is_object(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_json(text: str) -> bool:
    try:
        json.loads(text, strict=False)
    except ValueError:
        return False
    except RecursionError:
        return True
    return True


def _unfenced(text: str) -> str:
    """The lines between those of a code fence around `text`, if there is one."""
    if not (text.startswith(_FENCE) and text.endswith(_FENCE)):
        return text
    language, _, lines = text[len(_FENCE) : -len(_FENCE)].partition("\n")
    ends_line = "\n" in lines[len(lines.rstrip()) :]
    return lines if ends_line and _LANGUAGE.fullmatch(language.rstrip()) else text


def _rewritten(text: str, *, unescaped: bool = False) -> str | None:
    try:
        text = html.unescape(text) if unescaped else text
        value = json.loads(text, strict=False, parse_constant=_refuse)
        return json.dumps(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")
