"""A call as one JSON object, and the tag `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

Qwen, Hermes and others are trained on this tag, and write it whatever they are asked for. It is read in every dialect
and described in none.
"""

from typing import Any

import msgspec

from dialog_engine.tool_calls.prompt_mode.dialect import Head, ParsedCall
from dialog_engine.tool_calls.prompt_mode.source import Reading, Source
from dialog_engine.tool_calls.prompt_mode.values import as_object, json_until

OPENER = "<tool_call>"
CLOSER = "</tool_call>"
NAMELESS = "tool_call"
"""What a call is called that names no tool."""

ARGUMENTS = ("arguments", "parameters", "input")
"""The keys under which models put the arguments."""
_OTHER_KEYS = {"name", "id", "type"}
_FIRST_KEYS = tuple(f'"{key}"' for key in ("name", *ARGUMENTS))

_FORM = 'Write {"name": "name of the tool", "arguments": {…}}.'
UNFINISHED = "the call is not finished, or is no complete JSON object. Write the whole call again."
NO_NAME = f"the call names no tool. {_FORM}"
NO_ARGUMENTS = f"the call has no arguments, but other keys. {_FORM}"
OTHER_KEY = "the key {!r} is not understood. "


class ToolCallGrammar:
    """Parses blocks of one call each."""

    openers = (OPENER,)

    def head(self, source: Source, opener: str) -> Reading[Head | None]:
        """Read the name of the tool, or the key of its arguments where these come first."""
        yield from source.space()
        return (yield from object_head(source))

    def body(self, source: Source, head: Head) -> Reading[list[ParsedCall]]:
        """Read the object, and the closing tag."""
        return [(yield from object_call(source, head, CLOSER))]


def object_head(source: Source) -> Reading[Head | None]:
    """Read the beginning of a call that is a JSON object. Its name is "" if it does not come first."""
    if (yield from source.one_of("{")) is None:
        return None
    yield from source.space()
    key = yield from source.one_of(*_FIRST_KEYS)
    if key != '"name"':
        return Head("", begun=f"{{{key}") if key else None
    for begun in (":", '"'):
        yield from source.space()
        if (yield from source.one_of(begun)) is None:
            return None
    name = yield from source.upto('"')
    return Head(name.strip(), begun=f'{{"name":"{name}"') if name.strip() else None


def object_call(source: Source, head: Head, closer: str) -> Reading[ParsedCall]:
    """Read a call of which `object_head` has read the beginning, up to its closing tag."""
    source.put_back(head.begun)
    text, closed = yield from json_until(source, closer)
    sound = as_object(text)
    if sound is None:
        return ParsedCall(head.name or NAMELESS, text.strip(), (source.doubt if closed else "") or UNFINISHED)
    call: dict[str, Any] = msgspec.json.decode(sound)
    name = head.name or call.get("name")
    if not isinstance(name, str) or not name.strip():
        return ParsedCall(NAMELESS, sound, NO_NAME)
    key = next((key for key in ARGUMENTS if key in call), "")
    if not key and len(call) > 1:
        return ParsedCall(name.strip(), sound, NO_ARGUMENTS)
    if other := call.keys() - {key, *_OTHER_KEYS}:
        return ParsedCall(name.strip(), sound, OTHER_KEY.format(min(other)) + _FORM)
    arguments: Any = call.get(key) or ""
    written = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return ParsedCall(name.strip(), written, source.doubt, closed=bool(closed))
