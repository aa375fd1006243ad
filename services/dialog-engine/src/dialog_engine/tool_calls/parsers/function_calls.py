"""`<function_calls><invoke name="…"><parameter name="…">value</parameter></invoke></function_calls>`, as it comes."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dialog_engine.tool_calls.parsers.json_text import as_object, json_until
from dialog_engine.tool_calls.parsers.reply import Head, Written
from dialog_engine.tool_calls.parsers.source import CutError, Reading, Source
from dialog_engine.tool_calls.parsers.values import as_meant, is_text, typed

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
"""What is there of a tag that ends before its `>`: its attribute `name`, as far as it goes."""


@dataclass(slots=True)
class _Invoke:
    """A call as far as it has been read."""

    name: str
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    problem: str = ""

    def written(self, doubt: str, *, closed: bool = True) -> Written:
        return Written(self.name, json.dumps(self.values), self.problem or doubt, closed)


class FunctionCallsGrammar:
    """Any number of calls per block. A call may also stand alone, and missing closing tags are forgiven at the end.

    The schema of its tool, by name in `schemas`, says which parameters are text and which are JSON.
    """

    openers = (OPENER, INVOKE)

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self._schemas = schemas

    def head(self, source: Source, opener: str) -> Reading[Head | None]:
        """The name of the first call."""
        if opener == OPENER:
            yield from source.space()
            if (yield from source.one_of(INVOKE)) is None:
                return None
        return (yield from _invoked(source))

    def body(self, source: Source, head: Head) -> Reading[list[Written]]:
        """The parameters of the first call, and the calls after it."""
        calls: list[Written] = []
        call: Head | None = head
        while call:
            calls.append(call.all or (yield from self._invoke(source, call.name)))
            yield from source.space()
            try:
                tag = yield from source.one_of(INVOKE, CLOSER)
                call = (yield from _invoked(source)) if tag == INVOKE else None
            except CutError:
                break
        return calls

    def _invoke(self, source: Source, name: str) -> Reading[Written]:
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
                    return invoke.written(source.doubt)
                yield from self._parameter(source, invoke)
        except CutError:
            begun = source.rest()
            if begun and not begun.startswith("</"):
                invoke.problem = UNFINISHED.format("a parameter")
            return invoke.written(source.doubt, closed=False)

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
        invoke.values[name] = typed(schema, name, as_meant(text))

    def _json(self, source: Source, invoke: _Invoke) -> Reading[Written]:
        """What is no parameter may be all arguments as one JSON object."""
        text, closed = yield from json_until(source, INVOKE_END, CLOSER)
        if closed == CLOSER:
            source.put_back(CLOSER)
        sound = None if invoke.values else as_object(text)
        if sound is None:
            return Written(invoke.name, text.strip(), invoke.problem or (NEITHER if closed else CUT))
        return Written(invoke.name, sound, source.doubt, bool(closed))


def _invoked(source: Source) -> Reading[Head | None]:
    """The rest of the opening tag of a call."""
    try:
        name, empty = yield from _tag(source)
    except CutError as cut:
        begun = _NAME_BEGUN.fullmatch(cut.text)
        raise CutError((begun[1] or begun[2] or "") if begun else cut.text) from None
    return Head(name, Written(name, "{}", source.doubt) if empty else None) if name else None


def _tag(source: Source) -> Reading[tuple[str | None, bool]]:
    """The rest of an opening tag: what its attribute `name` says, None if it says nothing; and whether the tag closes
    itself."""
    attributes = yield from source.upto(">")
    found = _NAME.search(attributes) if attributes[:1].isspace() else None
    return ((found[1] or found[2] or "").strip() or None) if found else None, attributes.endswith("/")
