"""Formats dead letters: for people, at 100 columns, and for programs, as JSON. Pure.

The content of a letter is not trusted: control characters are escaped before they reach a terminal.
"""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import msgspec

from plugins_contract.dead_letters import DeadLetter
from plugins_contract.outcomes import TextBlock, ToolOutcome

UNREADABLE_SHOWN = 2000
HEAD = ("ID", "WHEN", "TOOL", "SUBJECT", "STARTS", "REASON")
WIDTHS = (16, 5, 24, 10, 6)


def table(letters: list[DeadLetter], now_ms: int, *, width: int) -> str:
    """One line for each letter."""
    rows: list[tuple[str, ...]] = [HEAD]
    for letter in letters:
        tool = "/".join(filter(None, (letter.word("server"), letter.word("tool")))) or "(unreadable)"
        starts = "?" if letter.starts is None else str(letter.starts)
        rows.append((letter.id, ago(letter.at_ms, now_ms), tool, letter.word("subject"), starts, letter.reason))
    widths = [*WIDTHS, max(20, width - sum(WIDTHS) - 2 * len(WIDTHS))]
    return "\n".join(
        "  ".join(_fitted(plain(cell), size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def details(letter: DeadLetter, now_ms: int) -> str:
    """Everything about a letter."""
    request = letter.request
    starts = {None: "not known", 0: "never", 1: "once"}.get(letter.starts, f"{letter.starts} times")
    facts = [
        ("when", f"{moment(letter.at_ms)}, {ago(letter.at_ms, now_ms)} ago"),
        ("reason", letter.reason),
        ("call", letter.correlation_id or "(not known)"),
        ("started", starts),
        ("given up by", letter.worker or "(not recorded)"),
        ("answer to caller", outcome_text(letter.outcome) if letter.outcome else "none: the call is not known"),
    ]
    if request is not None:
        facts[3:3] = [
            ("tool", f"{request.server}/{request.tool}, which the model calls {request.tool_name}"),
            ("subject", request.subject),
            ("session, turn", f"{request.session_id}, {request.turn_id}"),
            ("deadline", moment(request.deadline)),
            ("runs", f"{request.execution_class}{', and it may have taken effect' if letter.may_have_run else ''}"),
        ]
    lines = [f"Dead letter {letter.id}", *(f"  {name:<16} {plain(value)}" for name, value in facts)]
    if letter.history:
        lines += ["", "History"]
        lines += [f"  {moment(each.at_ms)}  {plain(f'{each.what} by {each.worker}')}" for each in letter.history]
    if request is not None:
        lines += ["", "Arguments", *map(plain, json.dumps(request.arguments, indent=2, ensure_ascii=False).split("\n"))]
    else:
        shown = plain(letter.event[:UNREADABLE_SHOWN].decode(errors="backslashreplace"))
        lines += ["", f"Unreadable, {len(letter.event)} bytes: {plain(letter.unreadable)}", shown]
        if len(letter.event) > UNREADABLE_SHOWN:
            lines.append(f"(the first {UNREADABLE_SHOWN} bytes; --json has all)")
    return "\n".join(lines)


def as_json(letter: DeadLetter) -> dict[str, Any]:
    """A letter as JSON. Times are Unix milliseconds; an entry that cannot be decoded is base64."""
    readable = letter.request is not None
    return {
        "id": letter.id,
        "at": letter.at_ms,
        "reason": letter.reason,
        "correlationId": letter.correlation_id,
        "server": letter.word("server"),
        "tool": letter.word("tool"),
        "subject": letter.word("subject"),
        "starts": letter.starts,
        "mayHaveRun": letter.may_have_run,
        "worker": letter.worker,
        "history": [{"at": each.at_ms, "what": each.what, "worker": each.worker} for each in letter.history],
        "outcome": msgspec.to_builtins(letter.outcome) if letter.outcome else None,
        "request": msgspec.to_builtins(letter.request) if readable else None,
        "unreadable": None
        if readable
        else {"why": letter.unreadable, "base64": base64.b64encode(letter.event).decode()},
    }


def outcome_text(outcome: ToolOutcome) -> str:
    """The outcome with its error or its text."""
    if outcome.error is not None:
        return f"{outcome.state}, {outcome.error.code}: {outcome.error.message}"
    text = " ".join(block.text for block in outcome.content if isinstance(block, TextBlock))
    return f"{outcome.state}{': ' if text else ''}{text}"


def moment(at_ms: int) -> str:
    """A time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def ago(at_ms: int, now_ms: int) -> str:
    """The time before now, in one unit."""
    seconds = max(0, now_ms - at_ms) // 1000
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def plain(text: str) -> str:
    """`text` with everything that is not printable escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _fitted(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else text[: width - 1] + "…"
