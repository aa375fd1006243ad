"""The dialect `<function_calls><invoke name="…"><parameter name="…">value</parameter></invoke></function_calls>`."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from dialog_engine.model import ToolCall, ToolMessage
from dialog_engine.tool_calls.prompt_mode.dialect import (
    Dialect,
    Head,
    ParsedCall,
    describe_tools,
    escape_closers,
    escape_tags,
)
from dialog_engine.tool_calls.prompt_mode.source import CutError, Reading, Source
from dialog_engine.tool_calls.prompt_mode.values import as_object, is_text, json_until, trimmed, typed, with_layout
from plugins_contract.catalog import ToolEntry

OPENER = "<function_calls>"
CLOSER = "</function_calls>"
INVOKE = "<invoke"
INVOKE_END = "</invoke>"
PARAMETER = "<parameter"
PARAMETER_END = "</parameter>"

UNFINISHED = "the call is not finished: {} is not closed. Write the whole call again."
TWICE = "the parameter {!r} is there twice. Write each parameter once; a list is one parameter, as JSON."
NAMELESS = 'a parameter has no name. Write <parameter name="…">value</parameter>.'
CUT = UNFINISHED.format("<invoke>")
NEITHER = 'between <invoke> and </invoke> is neither <parameter name="…">value</parameter> nor a JSON object.'

_NAME = re.compile(r"""\sname\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)')""")

_NAME_BEGUN = re.compile(r"""\s*|\s(?:n|na|nam|name\s*(?:=\s*(?:"([^"<>]*)"?|'([^'<>]*)'?)?)?)\s*/?""")
"""A tag that ends before its `>`, with as much of its attribute `name` as there is."""


@dataclass(slots=True)
class _Invoke:
    """A call, as far as it has been read."""

    name: str
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    problem: str = ""

    def parsed(self, doubt: str, *, closed: bool = True) -> ParsedCall:
        return ParsedCall(self.name, json.dumps(self.values), self.problem or doubt, closed)


class FunctionCallsGrammar:
    """Parses blocks of any number of calls. A call without a block and missing closing tags at the end are accepted.

    `schemas` are those of the tools by name: they say which parameters are text and which are JSON.
    """

    openers = (OPENER, INVOKE)

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._schemas = schemas

    def head(self, source: Source, opener: str) -> Reading[Head | None]:
        """Read the name of the first call."""
        if opener == OPENER:
            yield from source.space()
            if (yield from source.one_of(INVOKE)) is None:
                return None
        return (yield from _invoked(source))

    def body(self, source: Source, head: Head) -> Reading[list[ParsedCall]]:
        """Read the parameters of the first call, and the calls after it."""
        calls: list[ParsedCall] = []
        call: Head | None = head
        while call:
            calls.append(call.complete_call or (yield from self._invoke(source, call.name)))
            yield from source.space()
            try:
                tag = yield from source.one_of(INVOKE, CLOSER)
                call = (yield from _invoked(source)) if tag == INVOKE else None
            except CutError:
                break
        return calls

    def _invoke(self, source: Source, name: str) -> Reading[ParsedCall]:
        invoke = _Invoke(name)
        try:
            while True:
                yield from source.space()
                tag = yield from source.one_of(PARAMETER, INVOKE_END, CLOSER)
                if tag is None:
                    return (yield from self._json(source, invoke))
                if tag == CLOSER:
                    source.put_back(CLOSER)
                if tag != PARAMETER:
                    return invoke.parsed(source.doubt)
                yield from self._parameter(source, invoke)
        except CutError:
            begun = source.rest()
            if begun and not begun.startswith("</"):
                invoke.problem = UNFINISHED.format("a parameter")
            return invoke.parsed(source.doubt, closed=False)

    def _parameter(self, source: Source, invoke: _Invoke) -> Reading[None]:
        name, schema = None, self._schemas.get(invoke.name, {})
        try:
            name, empty = yield from _tag(source)
            if empty:
                text, closed = "", True
            elif name is None or is_text(schema, name):
                text, _ = yield from source.until(PARAMETER_END, before=(PARAMETER, INVOKE_END, CLOSER))
                closed = True
            else:
                text, closed = yield from json_until(source, PARAMETER_END)
        except CutError as cut:
            text, closed = cut.text, False
        if name is None:
            invoke.problem = invoke.problem or (NAMELESS if closed else UNFINISHED.format("a parameter"))
            return
        if not closed:
            invoke.problem = UNFINISHED.format(f"the parameter {name!r}")
        elif name in invoke.values:
            invoke.problem = TWICE.format(name)
        invoke.values[name] = typed(schema, name, trimmed(text))

    def _json(self, source: Source, invoke: _Invoke) -> Reading[ParsedCall]:
        """Read all arguments as one JSON object, which some models write in place of parameters."""
        text, closed = yield from json_until(source, INVOKE_END, CLOSER)
        if closed == CLOSER:
            source.put_back(CLOSER)
        sound = None if invoke.values else as_object(text)
        if sound is None:
            return ParsedCall(invoke.name, text.strip(), invoke.problem or (NEITHER if closed else CUT))
        return ParsedCall(invoke.name, sound, source.doubt, bool(closed))


def _invoked(source: Source) -> Reading[Head | None]:
    """Read the rest of the opening tag of a call."""
    try:
        name, empty = yield from _tag(source)
    except CutError as cut:
        begun = _NAME_BEGUN.fullmatch(cut.text)
        raise CutError((begun[1] or begun[2] or "") if begun else cut.text) from None
    return Head(name, ParsedCall(name, "{}", source.doubt) if empty else None) if name else None


def _tag(source: Source) -> Reading[tuple[str | None, bool]]:
    """Read the rest of an opening tag. Returns its attribute `name`, or None, and whether the tag closes itself."""
    attributes = yield from source.upto(">")
    found = _NAME.search(attributes) if attributes[:1].isspace() else None
    return ((found[1] or found[2] or "").strip() or None) if found else None, attributes.endswith("/")


_DESCRIPTION = """\
You can use tools. To use one, end your message with a block of exactly this form:

<function_calls>
<invoke name="name of the tool">
<parameter name="name of a parameter">its value</parameter>
</invoke>
</function_calls>

Write text values as they are, and all others as JSON; they must fit the parameters_schema of the tool.
For several calls that do not need each other's results, write several <invoke> into the one block.
Write nothing after that, and never a result of your own: stop and wait. The next message has the result:

<function_results>
<result>
<tool_name>name of the tool</tool_name>
<stdout>what the tool returned</stdout>
</result>
</function_results>

Write the block as it is, not in a code fence, and do not speak of these tags. Use a tool only when it helps, and only
these tools; otherwise just answer.

"""


def _write_call(call: ToolCall) -> str:
    sound = as_object(call.arguments or "{}")
    lines = [call.arguments]
    if sound is not None:
        values = cast("dict[str, Any]", msgspec.json.decode(sound))
        lines = [f'<parameter name="{name}">{_write_value(value)}</parameter>' for name, value in values.items()]
    return "\n".join([f'<invoke name="{call.name}">', *lines, "</invoke>"])


def _write_value(value: object) -> str:
    return with_layout(value) if isinstance(value, str) else escape_closers(msgspec.json.encode(value).decode())


def _write_result(result: ToolMessage) -> str:
    content = escape_tags(result.content, "stdout", "error", "result", "function_results")
    tag = "error" if result.failed else "stdout"
    return f"<result>\n<tool_name>{result.name}</tool_name>\n<{tag}>{content}</{tag}>\n</result>"


def _grammar(tools: Sequence[ToolEntry]) -> FunctionCallsGrammar:
    return FunctionCallsGrammar({tool.name: tool.input_schema for tool in tools})


FUNCTION_CALLS = Dialect(
    name="function_calls",
    describe=lambda tools, _: _DESCRIPTION + describe_tools(tools),
    no_tools="Tools cannot be used in your next message: answer in words, with what you have, and no <invoke> block.",
    calls=lambda calls: "\n".join(["<function_calls>", *map(_write_call, calls), "</function_calls>"]),
    results=lambda results: "\n".join(["<function_results>", *map(_write_result, results), "</function_results>"]),
    grammar=_grammar,
    stop=CLOSER,
)
