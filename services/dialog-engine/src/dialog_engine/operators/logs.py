"""Lines of the logs of all replicas: JSON or for people, with prefixes and colours or without.

Compose writes `engine-1  | ` before each line, kubectl `[pod/name/container] `, and both can add a time. Lines of
several replicas may alternate, so a traceback belongs to the last line of its own replica.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from plugins_contract.messages import NOT_READABLE

ID_FIELDS = ("correlationId", "turnId", "sessionId", "traceId")
MAX_TEXT = 20_000
"""How many characters of one line, with its traceback, are kept."""
_CONTROLS = re.compile(r"\x1b\[[0-9;?]{0,30}[A-Za-z]|\r")
"""Colours, and what Compose writes to erase a line of a terminal."""
_COMPOSE = re.compile(r"([A-Za-z0-9][\w.-]{0,200}) {1,200}\| ?")
_KUBECTL = re.compile(r"\[(?:pod/)?([\w./-]{1,300})\] ")
_COLLECTED_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]{0,12}(?:Z|[+-]\d\d:\d\d) ")
_HUMAN = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) (.*)", re.DOTALL)
_WORD = re.compile(r"[\w-]+")
_STANDARD = ("timestamp", "level", "logger", "message")


@dataclass(slots=True)
class Line:
    """Something that happened. `at_ms` is Unix milliseconds on the clock of the machine that wrote it.

    `ids` are those of its fields, by their names; none of a line for people.
    """

    at_ms: int
    source: str
    text: str
    ids: dict[str, str]


def lines_about(names: Collection[str], lines: Iterable[str], source: str) -> Iterator[Line]:
    """The lines that name one of these ids as a whole word. `source` is where lines without a prefix are from."""
    words = {name for name in names if _WORD.fullmatch(name)}
    others = [name for name in names if name not in words]
    last: dict[str, Line | None] = {}
    for raw in lines:
        replica, text = _split(_CONTROLS.sub("", raw).rstrip("\n"))
        replica = replica or source
        if text.startswith("{") or _HUMAN.match(text):
            named = not words.isdisjoint(_WORD.findall(text)) or any(name in text for name in others)
            found = (_of_json(text, replica) or _of_people(text, replica)) if named else None
            if before := last.get(replica):
                yield before
            last[replica] = found
        elif (before := last.get(replica)) and len(before.text) < MAX_TEXT:
            before.text = f"{before.text}\n{text}"[:MAX_TEXT]
    yield from (line for line in last.values() if line)


def _split(text: str) -> tuple[str, str]:
    """The replica that a prefix names, or '', and the line without it."""
    for prefix in (_COMPOSE, _KUBECTL):
        if found := prefix.match(text):
            replica, text = found[1], text[found.end() :]
            return replica, _COLLECTED_AT.sub("", text, count=1) if _COLLECTED_AT.match(text) else text
    return "", _COLLECTED_AT.sub("", text, count=1) if _COLLECTED_AT.match(text) else text


def _of_json(text: str, source: str) -> Line | None:
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
        at = datetime.fromisoformat(fields["timestamp"])
    except (*NOT_READABLE, KeyError, TypeError, ValueError):
        return None
    more = "".join(f" {name}={value}" for name, value in fields.items() if name not in _STANDARD)
    said = f"{fields.get('level')} {fields.get('logger')}: {fields.get('message')}{more}"[:MAX_TEXT]
    ids = {name: value for name in ID_FIELDS if isinstance(value := fields.get(name), str) and value}
    at_ms = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    return Line(at_ms, source, said, ids)


def _of_people(text: str, source: str) -> Line | None:
    if not (found := _HUMAN.match(text)):
        return None
    try:
        at = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").astimezone()  # the times of these lines are local
    except (ValueError, OverflowError):
        return None
    ids = {name: value for word in found[3].split(" ") for name, _, value in [word.partition("=")] if name in ID_FIELDS}
    return Line(int(at.timestamp() * 1000) + int(found[2]), source, found[3][:MAX_TEXT], ids)
