"""`<tool_use><name>…</name><arguments>{JSON}</arguments></tool_use>`, as models write it."""

from dataclasses import replace
from typing import Any

import msgspec

from dialog_engine.tool_calls.parsers.json_text import as_object, json_until
from dialog_engine.tool_calls.parsers.reply import Head, Written
from dialog_engine.tool_calls.parsers.source import CutError, Reading, Source

OPENER = "<tool_use>"
CLOSER = "</tool_use>"
ARGUMENTS_END = "</arguments>"

UNFINISHED = (
    "the call is not finished: its arguments are no complete JSON object, and </arguments></tool_use> is missing."
    " Write the whole call again."
)
NO_ARGUMENTS = (
    "the call has no arguments: after </name> there must be <arguments>{JSON}</arguments></tool_use>, and nothing else."
    " Write the whole call again."
)


_ARGUMENTS = ("arguments", "parameters", "input")
"""What models call them in a call that is one object."""


class ToolUseGrammar:
    """One call per block, or several that share one. A block without arguments calls with none; missing closing tags
    are forgiven at the end, and so is a call as models write it that were taught another way: as one JSON object."""

    openers = (OPENER,)

    def head(self, source: Source, opener: str) -> Reading[Head | None]:
        """Name, and the tag that opens the arguments, or closes a block that has none; or the name in an object."""
        yield from source.space()
        if (yield from source.one_of("<name>")):
            return (yield from _named(source))
        return (yield from _named_in_object(source))

    def body(self, source: Source, head: Head) -> Reading[list[Written]]:
        """The arguments, and the calls after it, up to the end of the block."""
        calls: list[Written] = []
        call: Head | None = head
        while call:
            written, call = yield from _call(source, call)
            calls.append(written)
        return calls


def _named(source: Source) -> Reading[Head | None]:
    """What follows `<name>`.

    Another tag, or an object, in the place of arguments: small models copy how a tool was described to them.
    """
    name, _ = yield from source.until("</name>")
    yield from source.space()
    name = name.strip()
    try:
        tag = yield from source.one_of("<arguments>", CLOSER)
    except CutError:
        # A stop sequence eats the closing tag of a block without arguments.
        return Head(name, Written(name, "", UNFINISHED if source.rest() else "", closed=False)) if name else None
    if not name:
        return None
    if tag is None:
        return Head(name, whole=False) if (yield from source.peek()) in ("<", "{") else None
    return Head(name, Written(name, "")) if tag == CLOSER else Head(name)


def _named_in_object(source: Source) -> Reading[Head | None]:
    for begun in ("{", '"name"', ":", '"'):
        yield from source.space()
        if (yield from source.one_of(begun)) is None:
            return None
    name = yield from source.upto('"')
    return Head(name.strip(), begun=f'{{"name":"{name}"') if name.strip() else None


def _call(source: Source, head: Head) -> Reading[tuple[Written, Head | None]]:
    """One call, and the beginning of the next in the same block."""
    if head.all:
        return replace(head.all, problem=head.all.problem or source.doubt), None
    if head.begun:
        source.put_back(head.begun)
        return (yield from _object(source, head.name)), None
    text, closed = yield from json_until(source, ARGUMENTS_END, CLOSER)
    sound = as_object(text)
    if sound is None and not (closed and head.whole):
        return Written(head.name, text, UNFINISHED if head.whole else NO_ARGUMENTS), None
    following = None
    if closed == ARGUMENTS_END:
        closed, following = yield from _after_arguments(source)
    empty = text.strip() in ("", "null")
    return Written(head.name, "" if empty else sound or text.strip(), source.doubt, closed=bool(closed)), following


def _after_arguments(source: Source) -> Reading[tuple[str, Head | None]]:
    """The end of the block, "" if the reply ended before it, and the beginning of another call in its place."""
    yield from source.space()
    try:
        tag = yield from source.one_of(CLOSER, "<name>")
    except CutError:
        return "", None
    try:
        return CLOSER, (yield from _named(source)) if tag == "<name>" else None
    except CutError:
        return CLOSER, None


def _object(source: Source, name: str) -> Reading[Written]:
    """A call that is one JSON object."""
    text, closed = yield from json_until(source, CLOSER)
    sound = as_object(text)
    if sound is None:
        return Written(name, text.strip(), source.doubt if closed else UNFINISHED)
    call: dict[str, Any] = msgspec.json.decode(sound)
    key = next((key for key in _ARGUMENTS if key in call), None)
    if key is None and len(call) > 1:
        return Written(name, sound, NO_ARGUMENTS)
    arguments: Any = call.get(key or "") or ""
    written = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return Written(name, written, source.doubt, closed=bool(closed))
