"""`<tool_use><name>…</name><arguments>{JSON}</arguments></tool_use>`, as models write it."""

from dataclasses import replace

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


class ToolUseGrammar:
    """One call per block. A block without arguments calls with none; missing closing tags are forgiven at the end."""

    openers = (OPENER,)

    def head(self, source: Source, opener: str) -> Reading[Head | None]:
        """Name, and the tag that opens the arguments, or closes a block that has none.

        Another tag, or an object, in their place: small models copy how a tool was described to them.
        """
        yield from source.space()
        if (yield from source.one_of("<name>")) is None:
            return None
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

    def body(self, source: Source, head: Head) -> Reading[list[Written]]:
        """The arguments, up to the end of the block."""
        if head.all:
            return [replace(head.all, problem=head.all.problem or source.doubt)]
        text, closed = yield from json_until(source, ARGUMENTS_END, CLOSER)
        sound = as_object(text)
        if sound is None and not (closed and head.whole):
            return [Written(head.name, text, UNFINISHED if head.whole else NO_ARGUMENTS)]
        if closed == ARGUMENTS_END:
            closed = yield from _closed(source)
        empty = text.strip() in ("", "null")
        return [Written(head.name, "" if empty else sound or text.strip(), source.doubt, bool(closed))]


def _closed(source: Source) -> Reading[str]:
    yield from source.space()
    try:
        yield from source.one_of(CLOSER)
    except CutError:
        return ""
    return CLOSER
