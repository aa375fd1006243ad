"""The argument text of one tool call, from the fragments that providers send."""

import json
from collections.abc import Sequence
from typing import Any, cast

import msgspec

_documents = json.JSONDecoder()


def is_complete(text: str) -> bool:
    """Whether `text` is one whole JSON object."""
    if not text.rstrip().endswith("}"):
        return False
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def settle(fragments: Sequence[str]) -> str:
    """The text that the fragments make, `""` for none at all.

    What they make when simply joined wins if it is a JSON object: no series of resends joins to one, whereas true
    fragments can look like a resend (`{"a":` then `{"a":1}` then `}`). Otherwise they are read as resends: a fragment
    that strictly extends the text so far replaces it, an exact copy of a complete one is ignored. If that makes no
    object either, the model's own broken text is returned, for it to be told.
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
