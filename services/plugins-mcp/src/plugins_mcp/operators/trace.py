"""`plugins-mcp trace`: the history of a tool call, or of all calls of a turn, from the ledger and from log files."""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from redis.asyncio import Redis

from plugins_contract.dead_letters import read_history
from plugins_contract.encryption import CLEAR, Cipher, entry_owner
from plugins_contract.keys import Keys
from plugins_contract.messages import NOT_READABLE
from plugins_mcp.operators.arguments import Trace
from plugins_mcp.operators.display import plain

DONE, NOT_FOUND, WRONG = 0, 1, 2
_HUMAN = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) (.*)", re.DOTALL)
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_STANDARD = ("timestamp", "level", "logger", "message")


@dataclass(frozen=True, slots=True)
class Line:
    """Something that happened. `at_ms` is Unix milliseconds: of Redis in the ledger, of its own machine in a log."""

    at_ms: int
    source: str
    text: str


async def show_trace(redis: Redis, keys: Keys, command: Trace, cipher: Cipher = CLEAR) -> int:
    """Print the history, in order; returns the exit code. Raises the errors of redis."""
    calls = await _calls(redis, keys, command.name, cipher)
    lines = [line for call in calls for line in await _ledger(redis, keys, call)]
    names = {command.name, *calls}
    try:
        for path in command.logs:
            with path.open(encoding="utf-8", errors="backslashreplace") as file:
                lines += log_lines(file, names, path)
    except OSError as error:
        sys.stderr.write(f"plugins-mcp trace: --log {error.filename}: {error.strerror}\n")
        return WRONG
    for line in sorted(lines, key=lambda line: line.at_ms):
        print(f"{_moment(line.at_ms)}  {plain(line.source)}  {plain(line.text)}")  # noqa: T201
    if not lines:
        sys.stderr.write(
            f"Redis knows no call and no turn '{plain(command.name)}' (it forgets calls a day after their end)"
            f"{', and no line of the logs names it' if command.logs else ''}.\n"
        )
        return NOT_FOUND
    return DONE


async def _calls(redis: Redis, keys: Keys, name: str, cipher: Cipher) -> list[str]:
    """The correlation ids that a name stands for: of a call, or of a turn by the log of its events.

    The trace id of a turn that began its own trace is the id of the turn without its hyphens.
    """
    if await redis.exists(keys.call(name)):
        return [name]
    turn = str(UUID(name)) if _TRACE_ID.fullmatch(name) else name
    entries: Any = await redis.xrange(keys.turn(turn))
    data = (cipher.open(fields.get(b"data", b""), entry_owner(turn, entry.decode())) for entry, fields in entries)
    found = map(_correlation_id, data)
    return [*dict.fromkeys(call for call in found if call)]


def _correlation_id(data: bytes) -> str | None:
    try:
        event = msgspec.json.decode(data, type=dict[str, Any])
    except NOT_READABLE:
        return None
    value = event.get("correlationId")
    return value if isinstance(value, str) else None


async def _ledger(redis: Redis, keys: Keys, call: str) -> list[Line]:
    """What the ledger says about a call."""
    client: Any = redis  # redis-py types some commands as either awaitable or not
    stored: dict[bytes, bytes] = await client.hgetall(keys.call(call))
    known = {name.decode(): value.decode(errors="backslashreplace") for name, value in stored.items()}

    def line(at: str | int, text: str) -> Line:
        return Line(int(at), "ledger", f"call {call} {text}")

    lines: list[Line] = []
    if at := known.get("publishedAt"):
        lines.append(line(at, f"published as entry {known.get('entry', '?')}, class {known.get('class', '?')}"))
    lines += [line(each.at_ms, f"{each.what} by {each.worker}") for each in read_history(known.get("history", ""))]
    if at := known.get("finishedAt"):
        again = f"; an operator ran it again as {known['requeuedAs']}" if "requeuedAs" in known else ""
        lines.append(line(at, f"{known.get('state')} after {known.get('starts', '?')} starts{again}"))
    elif at := known.get("renewedAt"):
        lines.append(line(at, f"still {known.get('state')}: last renewal of its lease by {known.get('owner', '?')}"))
    return lines


def log_lines(lines: Iterable[str], names: Iterable[str], path: Path) -> list[Line]:
    """The lines of a log, as JSON or for people, that name one of these ids. A traceback belongs to its line."""
    wanted = tuple(names)
    return [
        line
        for record in _records(lines)
        if any(name in record for name in wanted) and (line := _json_line(record, path) or _human_line(record, path))
    ]


def _records(lines: Iterable[str]) -> Sequence[str]:
    records: list[str] = []
    for line in lines:
        if records and not line.startswith("{") and not _HUMAN.match(line):
            records[-1] += line
        else:
            records.append(line)
    return [record.rstrip("\n") for record in records]


def _json_line(record: str, path: Path) -> Line | None:
    try:
        fields = msgspec.json.decode(record, type=dict[str, Any])
        at = datetime.fromisoformat(fields["timestamp"])
    except (*NOT_READABLE, KeyError, TypeError, ValueError):
        return None
    more = "".join(f" {name}={value}" for name, value in fields.items() if name not in _STANDARD)
    text = f"{fields.get('level')} {fields.get('logger')}: {fields.get('message')}{more}"
    return Line(int(at.timestamp() * 1000), path.name, text)


def _human_line(record: str, path: Path) -> Line | None:
    if not (found := _HUMAN.match(record)):
        return None
    # The times of these lines are local.
    at = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").astimezone()
    return Line(int(at.timestamp() * 1000) + int(found[2]), path.name, found[3])


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
