"""Replies with calls as tags in their text: what they are read as, however they are cut."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from dialog_engine.model import ChatEvent, FinishReason, ReasoningDelta, StreamEnd, TextDelta, ToolCallEvent
from dialog_engine.tool_calls.prompt_mode.dialect import Dialect
from dialog_engine.tool_calls.prompt_mode.function_calls import FUNCTION_CALLS
from dialog_engine.tool_calls.prompt_mode.tagged_reply import TaggedReply
from dialog_engine.tool_calls.prompt_mode.tool_use import TOOL_USE
from plugins_contract.catalog import ToolEntry
from tests.support.fakes.worker import tool

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (TOOL_USE, FUNCTION_CALLS)}

BLOCKS = {
    "tool_use": "<tool_use><name>now</name></tool_use>",
    "function_calls": '<function_calls><invoke name="now"></invoke></function_calls>',
}
NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
FILE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "content": {"type": "string"},
        "mode": {"enum": ["create", "append"]},
        "limit": {"type": "number"},
        "overwrite": {"type": "boolean"},
        "owner": {"type": ["string", "null"]},
        "tags": {"type": "array"},
        "options": {"type": "object"},
        "anything": {},
        "size": {"$ref": "#/$defs/size"},
        "place": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "$defs": {"size": {"type": "integer"}},
}
TOOLS: tuple[ToolEntry, ...] = (tool("add", NUMBERS), tool("write", FILE), tool("now"))
KNOWN = {entry.name for entry in TOOLS}


def read(
    dialect: Dialect,
    pieces: Iterable[str],
    finish: FinishReason = FinishReason.STOP,
    *,
    may_quote_results: bool = False,
) -> list[ChatEvent]:
    """The events of a reply that comes in these pieces; neighbouring deltas are one, ids are numbers."""
    ids = itertools.count(1)
    reply = TaggedReply(dialect.grammar(TOOLS), KNOWN, lambda: str(next(ids)), may_quote_results=may_quote_results)
    events: list[ChatEvent] = []
    for piece in pieces:
        events += reply.read(TextDelta(piece))
    reply.read(StreamEnd(finish))
    events += reply.end()
    return merged(events)


def merged(events: Sequence[ChatEvent]) -> list[ChatEvent]:
    """Neighbouring deltas of a kind as one."""
    result: list[ChatEvent] = []
    for event in events:
        match result, event:
            case [*_, TextDelta(before)], TextDelta(text):
                result[-1] = TextDelta(before + text)
            case [*_, ReasoningDelta(before)], ReasoningDelta(text):
                result[-1] = ReasoningDelta(before + text)
            case _:
                result.append(event)
    return result


def cut(text: str, *places: int) -> list[str]:
    return [text[a:b] for a, b in itertools.pairwise([0, *sorted(places), len(text)])]


def calls_of(events: Iterable[ChatEvent]) -> list[ToolCallEvent]:
    return [event for event in events if isinstance(event, ToolCallEvent)]
