"""JSON as providers really send it: payloads with unexpected types, and the arguments of tool calls in fragments. Pure.

A field of an unexpected type counts as absent: one provider's oddity must not break a stream that can be read without
it. Arguments are never repaired by guessing, only reassembled.
"""

import json
import re
from collections.abc import Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from dialog_engine.llm.decoding import is_complete

T = TypeVar("T", bound=msgspec.Struct)

Tokens = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
"""A number of tokens as a provider reports it. One that cannot be true counts as absent: no store could add it up."""

_documents = json.JSONDecoder()
_not_space = re.compile(r"\S")
_marks = re.compile(r'["{}]|\\.?', re.DOTALL)


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
        return salvage(data, kind)


def salvage(data: bytes, kind: type[T]) -> T:
    """Read a payload of which not all has the types of `kind`, without the parts that do not fit.

    Raises:
        ValueError: it is not JSON.
    """
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
    return get_type_hints(struct, include_extras=True)


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


class _Balance:
    """Whether a text that arrives in fragments has braces so far, and all of its braces and quotes are closed."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = self._escaped = self._closed = False

    def __bool__(self) -> bool:
        return self._closed and self._depth == 0 and not self._quoted

    def add(self, text: str) -> None:
        if self._escaped and text:
            self._escaped, text = False, text[1:]
        for mark in _marks.findall(text):
            if mark == '"':
                self._quoted = not self._quoted
            elif mark == "\\":
                self._escaped = True  # what it escapes is in the next fragment
            elif not self._quoted and len(mark) == 1:
                self._closed = mark == "}"
                self._depth += 1 if mark == "{" else -1


class ArgumentsScan:
    """Excludes in linear time that the fragments of one call are complete, however often that is asked."""

    def __init__(self) -> None:
        self._joined = _Balance()
        self._folded = _Balance()
        self._text: list[str] = []
        self._length = 0

    def add(self, fragment: str) -> None:
        """Add the next fragment."""
        self._joined.add(fragment)
        # The same steps as in `_fold`. The text so far is joined only for a fragment that is as long.
        text = "".join(self._text) if len(fragment) >= self._length else None
        if text is not None and len(fragment) > len(text) and fragment.startswith(text):
            self._folded.add(fragment[len(text) :])
            self._text, self._length = [fragment], len(fragment)
        elif text is None or fragment != text or not is_complete(text):
            self._folded.add(fragment)
            self._text.append(fragment)
            self._length += len(fragment)

    def may_be_complete(self) -> bool:
        """Whether `join_arguments` may give a complete object: False is certain."""
        return bool(self._joined) or bool(self._folded)


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
    objects: list[dict[str, Any]] = []
    begin = end = 0
    while found := _not_space.search(text, end):
        begin = found.start()
        try:
            value, end = _documents.raw_decode(text, begin)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict):
            return None
        objects.append(cast("dict[str, Any]", value))
    return text[begin:end] if objects and all(value in ({}, objects[-1]) for value in objects) else None
