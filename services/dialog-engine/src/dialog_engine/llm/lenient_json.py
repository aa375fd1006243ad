"""JSON as providers really send it: payloads with unexpected types, and the arguments of tool calls in fragments. Pure.

A field of an unexpected type counts as absent: one provider's oddity must not break a stream that can be read without
it. Arguments are never repaired by guessing, only reassembled.
"""

import json
from collections.abc import Sequence
from functools import cache
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

_documents = json.JSONDecoder()


class Wire(msgspec.Struct, gc=False):
    """Base of the structures that are read from a provider's JSON. Every field has a default."""


def decode(data: bytes, decoder: msgspec.json.Decoder[T], kind: type[T]) -> T:
    """Read one payload; `decoder` is that of `kind`.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError):
        return _salvage(read_json(data), kind) or kind()


def read_json(data: bytes) -> object:
    """Read JSON with the deviations that occur: half a surrogate pair, NaN. Raises ValueError for anything else."""
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    # Half a surrogate pair can be neither stored nor sent.
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _salvage(value: object, kind: Any) -> Any:
    """`value` as `kind`, without the parts that do not fit; None if nothing does."""
    options = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    for option in options:
        if isinstance(option, type) and issubclass(option, msgspec.Struct) and isinstance(value, dict):
            entries = cast("dict[str, Any]", value)
            fields = {name: _salvage(entries.get(name), hint) for name, hint in _hints(option).items()}
            return option(**fields)
        if get_origin(option) is list and isinstance(value, list):
            item = get_args(option)[0]
            salvaged = (_salvage(entry, item) for entry in cast("list[Any]", value))
            return [entry for entry in salvaged if entry is not None]
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


@cache
def _hints(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(struct)


def is_complete(text: str) -> bool:
    """Whether `text` is one complete JSON object."""
    if not text.rstrip().endswith("}"):
        return False
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def join_arguments(fragments: Sequence[str]) -> str:
    """The argument text of one tool call from its fragments, `""` for none at all.

    The plain concatenation wins if it is a JSON object: no series of resends concatenates to one, whereas true
    fragments can look like a resend (`{"a":` then `{"a":1}` then `}`). Otherwise the fragments are read as resends: a
    fragment that strictly extends the text so far replaces it, an exact copy of a complete text is ignored. If that
    gives no object either, the concatenation is returned, so that the error sent to the model shows its own text.
    """
    joined = "".join(fragments)
    if is_complete(joined):
        return joined
    if joined.strip() in ("", "null"):
        return ""
    folded = _fold(fragments)
    if is_complete(folded):
        return folded
    return _resent_in_fragments(joined) or joined


def _fold(fragments: Sequence[str]) -> str:
    text = ""
    for fragment in fragments:
        if len(fragment) > len(text) and fragment.startswith(text):
            text = fragment
        elif fragment != text or not is_complete(text):
            text += fragment
    return text


def _resent_in_fragments(text: str) -> str | None:
    """The last of several objects in a row, if those before it are its copies or the placeholder `{}`."""
    objects: list[tuple[dict[str, Any], str]] = []
    rest = text.strip()
    while rest:
        try:
            value, end = _documents.raw_decode(rest)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict):
            return None
        objects.append((cast("dict[str, Any]", value), rest[:end]))
        rest = rest[end:].lstrip()
    if not objects:
        return None
    last, last_text = objects[-1]
    return last_text if all(value in ({}, last) for value, _ in objects) else None
