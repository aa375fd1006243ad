"""A long text in pieces that a model can take, and what it finds in it. Pure.

Offsets count characters (code points) from 0. A page ends with a line, where lines are short enough.
"""

import re

from dialog_engine.tool_calls.texts import end_of_line

CONTEXT = 100
"""Characters shown before and after what was found."""
MAX_MATCHES = 20
NOTES = 300
"""Characters that a page needs beside its text, at most."""


def page(text: str, name: str, offset: int, length: int) -> str:
    """The text from `offset` on, `length` characters of it at most, and where it goes on. `offset` lies inside."""
    end = min(offset + length, len(text))
    if end < len(text):
        end = end_of_line(text, offset, end)
    said = f"[result {name}: characters {offset} to {end} of {len(text)}]\n{text[offset:end]}"
    if end < len(text):
        return f"{said}\n[… {len(text) - end:,} characters follow: offset {end} …]"
    return f"{said}\n[end of the result]"


def found(text: str, name: str, what: str, offset: int, length: int) -> str:
    """Where `what` stands in the text from `offset` on, in upper or lower case, with what is around it.

    The answer has `length` characters at most.
    """
    matches = [match.span() for match in re.finditer(re.escape(what), text[offset:], re.IGNORECASE)]
    if not matches:
        since = f" from offset {offset} on" if offset else ""
        return f"[result {name}: {what[:CONTEXT]!r} does not occur in its {len(text)} characters{since}]"
    lines: list[str] = []
    room = length - NOTES
    for start, end in matches[:MAX_MATCHES]:
        line = f"offset {offset + start}: {_around(text, offset + start, offset + end)}"
        room -= len(line) + 1
        if room < 0 and lines:
            break
        lines.append(line)
    said = f"[result {name}: {len(matches):,} matches from offset {offset} on, {len(lines)} shown]\n" + "\n".join(lines)
    if len(lines) < len(matches):
        return f"{said}\n[… more: find it again from offset {offset + matches[len(lines)][0]} on …]"
    return said


def _around(text: str, start: int, end: int) -> str:
    begins, ends = max(0, start - CONTEXT), min(len(text), min(end, start + CONTEXT) + CONTEXT)
    before, after = "…" if begins else "", "…" if ends < len(text) else ""
    return before + " ".join(text[begins:ends].split("\n")) + after
