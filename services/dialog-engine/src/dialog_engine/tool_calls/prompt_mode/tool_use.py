"""The dialect `<tool_use><name>…</name><arguments>{JSON}</arguments></tool_use>`."""

from collections.abc import Sequence
from dataclasses import replace

from dialog_engine.model import ToolCall, ToolMessage
from dialog_engine.tool_calls.prompt_mode.attributes import read_tag
from dialog_engine.tool_calls.prompt_mode.dialect import (
    Dialect,
    Head,
    ParsedCall,
    describe_tools,
    escape_closers,
    escape_tags,
)
from dialog_engine.tool_calls.prompt_mode.source import CutError, Reading, Source
from dialog_engine.tool_calls.prompt_mode.tool_call import object_call, object_head
from dialog_engine.tool_calls.prompt_mode.values import as_object, json_until
from plugins_contract.catalog import ToolEntry

OPENER = "<tool_use>"
OPENERS_WITH_ATTRIBUTES = ("<tool_use ", "<tool_use\n")
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
ATTRIBUTES = "the attributes of <tool_use> are not understood. Write the arguments as <arguments>{JSON}</arguments>."


class ToolUseGrammar:
    """Parses blocks of one or more calls. A block without arguments is a call without any.

    Accepted are missing closing tags at the end, and a call that is written as one JSON object, as some models do.
    """

    openers = (OPENER, *OPENERS_WITH_ATTRIBUTES)

    def head(self, source: Source, opener: str) -> Reading[Head | None]:
        """Read the name and the tag that follows it, or the name in a JSON object.

        The name may be an attribute. Others could be meant as arguments, which are JSON here: a problem of the call.
        """
        name, closed, problem = "", False, ""
        if opener != OPENER:
            tag = yield from read_tag(source)
            name, closed = (tag.get("name") or "").strip(), tag.closed
            problem = "" if tag.sound and not tag.without("name") else ATTRIBUTES
        if closed:
            return Head(name, ParsedCall(name, ""), problem=problem) if name else None
        yield from source.space()
        if name:
            head = yield from _before_arguments(source, name)
        elif (yield from source.one_of("<name>")):
            head = yield from _named(source)
        else:
            head = yield from object_head(source)
        return replace(head, problem=problem) if head and problem else head

    def body(self, source: Source, head: Head) -> Reading[list[ParsedCall]]:
        """Read the arguments, and the further calls of the block."""
        calls: list[ParsedCall] = []
        call: Head | None = head
        while call:
            written, following = yield from _call(source, call)
            calls.append(replace(written, problem=call.problem or written.problem))
            call = following
        return calls


def _named(source: Source) -> Reading[Head | None]:
    name, _ = yield from source.until("</name>")
    yield from source.space()
    return (yield from _before_arguments(source, name.strip()))


def _before_arguments(source: Source, name: str) -> Reading[Head | None]:
    """Read what comes between the name and the arguments.

    Another tag or an object in place of `<arguments>` makes the head incomplete: small models copy the description of
    a tool.
    """
    try:
        tag = yield from source.one_of("<arguments>", CLOSER)
    except CutError:
        # A stop sequence eats the closing tag of a block without arguments.
        return Head(name, ParsedCall(name, "", UNFINISHED if source.rest() else "", closed=False)) if name else None
    if not name:
        return None
    if tag is None:
        return Head(name, whole=False) if (yield from source.peek()) in ("<", "{") else None
    return Head(name, ParsedCall(name, "")) if tag == CLOSER else Head(name)


def _call(source: Source, head: Head) -> Reading[tuple[ParsedCall, Head | None]]:
    """Read one call, and the head of the next one in the same block."""
    if head.complete_call:
        return replace(head.complete_call, problem=head.complete_call.problem or source.doubt), None
    if head.begun:
        return (yield from object_call(source, head, CLOSER)), None
    text, closed = yield from json_until(source, ARGUMENTS_END, CLOSER)
    sound = as_object(text)
    if sound is None and not (closed and head.whole):
        return ParsedCall(head.name, text, UNFINISHED if head.whole else NO_ARGUMENTS), None
    following = None
    if closed == ARGUMENTS_END:
        closed, following = yield from _after_arguments(source)
    empty = text.strip() in ("", "null")
    return ParsedCall(head.name, "" if empty else sound or text.strip(), source.doubt, closed=bool(closed)), following


def _after_arguments(source: Source) -> Reading[tuple[str, Head | None]]:
    """Read the end of the block, "" if the reply ended before it, or the head of another call in its place."""
    yield from source.space()
    try:
        tag = yield from source.one_of(CLOSER, "<name>")
    except CutError:
        return "", None
    try:
        return CLOSER, (yield from _named(source)) if tag == "<name>" else None
    except CutError:
        return CLOSER, None


_DESCRIPTION = """\
You can use tools. To use one, end your message with a block of exactly this form:

<tool_use>
<name>name of the tool</name>
<arguments>{{"name of a parameter": "its value"}}</arguments>
</tool_use>

The arguments are one JSON object that fits the parameters_schema of the tool.
{how_many}
Write nothing after that, and never a result of your own: stop and wait. The next message has the result:

<tool_use_result>
<name>name of the tool</name>
<result>what the tool returned</result>
</tool_use_result>

Write the block as it is, not in a code fence, and do not speak of these tags. Use a tool only when it helps, and only
these tools; otherwise just answer.

{tools}"""

_ONE = "One block per message: for several calls, wait for each result first."
_SEVERAL = "For several calls that do not need each other's results, write one block right after the other."


def _describe(tools: Sequence[ToolEntry], ends_with_first: bool) -> str:
    return _DESCRIPTION.format(how_many=_ONE if ends_with_first else _SEVERAL, tools=describe_tools(tools))


def _write_call(call: ToolCall) -> str:
    sound = as_object(call.arguments or "{}")
    arguments = call.arguments if sound is None else escape_closers(sound)
    return f"<tool_use>\n<name>{call.name}</name>\n<arguments>{arguments}</arguments>\n</tool_use>"


def _write_result(result: ToolMessage) -> str:
    content = escape_tags(result.content, "result", "tool_use_result")
    return f"<tool_use_result>\n<name>{result.name}</name>\n<result>{content}</result>\n</tool_use_result>"


def _grammar(_: Sequence[ToolEntry]) -> ToolUseGrammar:
    return ToolUseGrammar()


TOOL_USE = Dialect(
    name="tool_use",
    describe=_describe,
    no_tools="Tools cannot be used in your next message: answer in words, with what you have, and no <tool_use> block.",
    calls=lambda calls: "\n".join(map(_write_call, calls)),
    results=lambda results: "\n".join(map(_write_result, results)),
    grammar=_grammar,
    stop=CLOSER,
)
