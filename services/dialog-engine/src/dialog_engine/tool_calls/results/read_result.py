"""`read_result {id, offset, length, find}`: reads what was left out of a long result, in pages or by search.

Offsets count characters (code points) from 0. A page ends at the end of a line, unless lines are very long.
"""

from typing import Any

from callstream_runtime.long_texts import reading
from dialog_engine.model import Turn
from dialog_engine.tool_calls.local_tools import LocalTool, local_entry
from dialog_engine.tool_calls.ports import ResultStore
from dialog_engine.tool_calls.results.texts import READ_RESULT, end_of_line, result_id
from plugins_contract.catalog import ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome

CONTEXT = 100
"""Characters shown before and after a match."""
MAX_MATCHES = 20
NOTES = 300
"""The most characters that a page needs in addition to its text."""


def page(text: str, name: str, offset: int, length: int) -> str:
    """At most `length` characters of the text from `offset` on, which must be inside it, and the offset of the rest."""
    end = min(offset + length, len(text))
    if end < len(text):
        end = end_of_line(text, offset, end)
    said = f"[result {name}: characters {offset} to {end} of {len(text)}]\n{text[offset:end]}"
    if end < len(text):
        return f"{said}\n[… {len(text) - end:,} characters follow: offset {end} …]"
    return f"{said}\n[end of the result]"


def found(text: str, name: str, what: str, offset: int, length: int) -> str:
    """The matches of `what` in the text from `offset` on, without regard to case, each with its context.

    The answer has at most `length` characters.
    """
    # Of the methods of `str` both are linear; a pattern without regard to case compares `what` at each place.
    folded, wanted = without_case(text), without_case(what)
    count = folded.count(wanted, offset)
    if not count:
        since = f" from offset {offset} on" if offset else ""
        return f"[result {name}: {what[:CONTEXT]!r} does not occur in its {len(text)} characters{since}]"
    lines: list[str] = []
    room = length - NOTES
    start = folded.find(wanted, offset)
    while start >= 0 and len(lines) < MAX_MATCHES:
        line = f"offset {start}: {_around(text, start, start + len(what))}"
        room -= len(line) + 1
        if room < 0 and lines:
            break
        lines.append(line)
        start = folded.find(wanted, start + len(what))
    said = f"[result {name}: {count:,} matches from offset {offset} on, {len(lines)} shown]\n" + "\n".join(lines)
    return f"{said}\n[… more: find it again from offset {start} on …]" if start >= 0 else said


def without_case(text: str) -> str:
    """The text in lower case, with as many characters: only İ would become two."""
    return text.replace("İ", "i").lower().replace("\N{GREEK SMALL LETTER FINAL SIGMA}", "\N{GREEK SMALL LETTER SIGMA}")


def _around(text: str, start: int, end: int) -> str:
    begins, ends = max(0, start - CONTEXT), min(len(text), min(end, start + CONTEXT) + CONTEXT)
    before, after = "…" if begins else "", "…" if ends < len(text) else ""
    return before + " ".join(text[begins:ends].split("\n")) + after


_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "minLength": 8, "maxLength": 36, "description": "The id of the result."},
        "offset": {
            "type": "integer",
            "minimum": 0,
            "description": "The character to begin at; the beginning of the result is 0.",
        },
        "length": {"type": "integer", "minimum": 1, "description": "How many characters; as many as fit if left out."},
        "find": {
            "type": "string",
            "minLength": 1,
            "maxLength": 1000,
            "description": "Plain text to look for: instead of a page you get the offsets where it stands.",
        },
    },
    "required": ["id"],
    "additionalProperties": False,
}


class ReadResult(LocalTool):
    """Reads results of the same session. A page has at most `max_chars` characters, like any result."""

    def __init__(self, store: ResultStore, max_chars: int) -> None:
        self._store = store
        self._max_chars = max_chars
        self._entry = local_entry(
            READ_RESULT,
            "Read on in a tool result of which a part was left out, or search it. Where something is left out, the"
            " result names the id and the offset.",
            _SCHEMA,
            title="Read on in a long result",
        )

    @property
    def entry(self) -> ToolEntry:
        return self._entry

    async def answer(self, turn: Turn, arguments: dict[str, Any]) -> ToolOutcome:
        name: str = arguments["id"]
        kept = await self._store.result(turn, name)
        if kept is None:
            return _failed(ErrorCode.RESOURCE_NOT_FOUND, await self._unknown(turn, name))
        text = kept.whole.for_model
        return await reading(len(text), _answer, text, name, arguments, self._max_chars)

    async def _unknown(self, turn: Turn, name: str) -> str:
        newest = await self._store.cut_results(turn)
        cut = [f'"{result_id(correlation_id)}" of {tool_name}' for correlation_id, tool_name in newest]
        there_are = f"Results that can be read: {', '.join(cut)}." if cut else "No result here was cut."
        return f"there is no result {name!r} in this conversation. {there_are}"


def _answer(text: str, name: str, arguments: dict[str, Any], max_chars: int) -> ToolOutcome:
    offset: int = arguments.get("offset", 0)
    if offset and offset >= len(text):
        message = f"offset {offset} is past the end: result {name} has {len(text)} characters, counted from 0"
        return _failed(ErrorCode.INVALID_ARGUMENTS, message)
    if what := arguments.get("find"):
        said = found(text, name, what, offset, max_chars)
    else:
        most = max_chars - NOTES
        said = page(text, name, offset, min(arguments.get("length", most), most))
    return ToolOutcome(CallState.SUCCEEDED, (TextBlock(said),))


def _failed(code: ErrorCode, message: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.FAILED, code, message)
