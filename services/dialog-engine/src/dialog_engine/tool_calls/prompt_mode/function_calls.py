"""The dialect `<function_calls><invoke name="…"><parameter name="…">value</parameter></invoke></function_calls>`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from dialog_engine.model import ToolCall, ToolMessage
from dialog_engine.tool_calls.prompt_mode.attributes import TAG_ENDS, Tag, attribute_begun, read_tag
from dialog_engine.tool_calls.prompt_mode.dialect import (
    Dialect,
    Head,
    ParsedCall,
    describe_tools,
    escape_closers,
    escape_tags,
)
from dialog_engine.tool_calls.prompt_mode.source import CutError, Reading, Source
from dialog_engine.tool_calls.prompt_mode.values import Parameters, as_object, json_until, trimmed, with_layout
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
_FORM = ' Write each argument as <parameter name="…">value</parameter>.'
ATTRIBUTE = f"the attribute {{!r}} is not understood.{_FORM}"
MALFORMED = f"its attributes are not understood.{_FORM}"
BOTH = f"it has attributes and a JSON object.{_FORM}"


@dataclass(slots=True)
class _Invoke:
    """A call, as far as it has been read. `parameters` are those of its tool."""

    name: str
    parameters: Parameters
    problem: str
    values: dict[str, Any] = field(default_factory=dict[str, Any])

    def doubt(self, problem: str) -> None:
        """Set the problem, unless there is one."""
        self.problem = self.problem or problem

    def add(self, name: str, text: str) -> None:
        """Add an argument. Two different values for it are a problem."""
        value = self.parameters.typed(name, text)
        if name in self.values and json.dumps(self.values[name]) != json.dumps(value):
            self.doubt(TWICE.format(name))
        self.values[name] = value

    def add_attributes(self, tag: Tag) -> None:
        """Add the arguments in the tag of the call, which has been read up to the name of the tool."""
        for name, value in tag.attributes:
            if name == "name":
                self.doubt(TWICE.format(name))
            elif self.parameters.is_known(name):
                self.add(name, value)
            else:
                self.doubt(ATTRIBUTE.format(name))
        if not tag.sound:
            self.doubt(MALFORMED)

    def add_parameter(self, tag: Tag, name: str, body: str) -> None:
        """Add an argument from its tag, whose attribute `value` may stand for the text in it."""
        for other, _ in tag.without("name", "value"):
            if other != "type" or self.parameters.is_known(other):
                self.doubt((TWICE if other in ("name", "value") else ATTRIBUTE).format(other))
        value = tag.get("value")
        if value is not None:
            self.add(name, value)
        if value is None or body.strip():
            self.add(name, trimmed(body))

    def parsed(self, doubt: str, *, closed: bool = True) -> ParsedCall:
        return ParsedCall(self.name, json.dumps(self.values), self.problem or doubt, closed)


class FunctionCallsGrammar:
    """Parses blocks of any number of calls. A call without a block and missing closing tags at the end are accepted.

    `schemas` are those of the tools by name: they say which parameters there are, and which are text and which JSON.
    """

    openers = (OPENER, INVOKE)

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._parameters = {name: Parameters(schema) for name, schema in schemas.items()}

    def head(self, source: Source, opener: str) -> Reading[Head | None]:
        """Read the name of the first call."""
        if opener == OPENER:
            yield from source.space()
            if (yield from source.one_of(INVOKE)) is None:
                return None
        return (yield from _invoked(source))

    def body(self, source: Source, head: Head) -> Reading[list[ParsedCall]]:
        """Read the arguments of the first call, and the calls after it."""
        calls: list[ParsedCall] = []
        call: Head | None = head
        while call:
            calls.append((yield from self._invoke(source, call)))
            yield from source.space()
            try:
                tag = yield from source.one_of(INVOKE, CLOSER)
                call = (yield from _invoked(source)) if tag == INVOKE else None
            except CutError:
                break
        return calls

    def _invoke(self, source: Source, head: Head) -> Reading[ParsedCall]:
        invoke = _Invoke(head.name, self._parameters.get(head.name, Parameters({})), head.problem)
        source.put_back(head.begun)
        try:
            opened = yield from read_tag(source)
        except CutError:
            invoke.doubt(CUT)
            return invoke.parsed(source.doubt, closed=False)
        invoke.add_attributes(opened)
        if opened.closed:
            return invoke.parsed(source.doubt)
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
        tag: Tag | None = None
        name, text, closed = "", "", True
        try:
            tag = yield from read_tag(source)
            name = (tag.get("name") or "").strip()
            if tag.closed:
                pass
            elif not name or invoke.parameters.is_text(name):
                text, _ = yield from source.until(PARAMETER_END, before=(PARAMETER, INVOKE_END, CLOSER))
            else:
                text, end = yield from json_until(source, PARAMETER_END)
                closed = bool(end)
        except CutError as cut:
            text, closed = cut.text, False
        if tag is None or not closed:
            invoke.problem = UNFINISHED.format(f"the parameter {name!r}" if name else "a parameter")
        if tag is not None and not tag.sound:
            invoke.doubt(MALFORMED)
        elif tag is not None and name:
            invoke.add_parameter(tag, name, text)
        else:
            invoke.doubt(NAMELESS)

    def _json(self, source: Source, invoke: _Invoke) -> Reading[ParsedCall]:
        """Read all arguments as one JSON object, which some models write in place of parameters."""
        text, closed = yield from json_until(source, INVOKE_END, CLOSER)
        if closed == CLOSER:
            source.put_back(CLOSER)
        sound = as_object(text)
        if sound is None or invoke.values:
            problem = CUT if not closed else BOTH if sound else NEITHER
            return ParsedCall(invoke.name, text.strip(), invoke.problem or problem)
        return ParsedCall(invoke.name, sound, invoke.problem or source.doubt, bool(closed))


def _invoked(source: Source) -> Reading[Head | None]:
    """Read the opening tag of a call up to the name of the tool, and on until it is certain to be a tag.

    The body reads all its attributes but the name again. A name with a bracket in it is none: a quote is missing.

    Raises:
        CutError: the text ended before that.
    """
    name, others = "", ""
    first = yield from source.peek()
    if first and not first.isspace():
        return None  # a tag whose own name is longer
    while True:
        try:
            key, mark = yield from attribute_begun(source)
        except CutError:
            raise CutError(name) from None
        if mark in TAG_ENDS:
            return Head(name, begun=others + mark) if name else None
        if name:
            return Head(name, begun=f"{others} {key}={mark}") if mark else (yield from _malformed(source, name, others))
        if not mark:
            return None
        try:
            value = yield from source.upto(mark)
        except CutError as cut:
            raise CutError(cut.text if key == "name" else "") from None
        if key == "name":
            name = value.strip()
            if not name or "<" in name or ">" in name:
                return None
        else:
            others += f" {key}={mark}{value}{mark}"


def _malformed(source: Source, name: str, others: str) -> Reading[Head]:
    """Read the rest of a tag that has something else than attributes in it."""
    try:
        rest = yield from source.upto(">")
    except CutError as cut:
        raise CutError(f"{name} {cut.text}") from None  # no name: somebody speaks of the tag
    return Head(name, begun=f"{others}/>" if rest.endswith("/") else f"{others}>", problem=MALFORMED)


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
