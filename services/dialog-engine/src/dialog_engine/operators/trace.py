"""`dialog-engine trace`: the whole history of a call, a turn, a session or a trace, in order.

The sources are the store, the logs of all replicas and the ledger in Redis. The report names each source that was not
available.
"""

import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from callstream_runtime.connections import command_client
from callstream_runtime.redis_errors import RedisUnavailable
from callstream_runtime.visible import visible
from dialog_engine.config.store import OperatorSettings
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.operators.audit import AuditFilter, Query, as_text, events, opened
from dialog_engine.operators.logs import Line, lines_about
from dialog_engine.operators.trace_questions import questions_of
from dialog_engine.storage.calls import REQUEST_ID
from dialog_engine.storage.database import Row
from dialog_engine.storage.statements import open_value
from dialog_engine.tool_calls.values import CLIENT_CLASS
from plugins_contract.dead_letters import read_history
from plugins_contract.encryption import Cipher, DecryptionError, entry_owner
from plugins_contract.keys import Keys
from plugins_contract.messages import NOT_READABLE
from plugins_contract.outcomes import ToolOutcome
from plugins_contract.questions import call_of_round, round_id

DONE, NOT_FOUND, WRONG = 0, 1, 2
REDIS_SECONDS = 2.0
"""The timeout of one command: a person is waiting."""
MAX_TURNS = 200
"""Of a session the newest turns are shown."""
MAX_CALLS = 2_000
STDIN = Path("-")
_TURN = (
    "t.turn_id, t.session_id, s.subject, t.status, t.reason, t.error_code, t.model, t.rounds, t.input_tokens,"
    " t.output_tokens, t.owner, t.epoch, t.crashes, t.created_at, t.finished_at"
    " FROM turns t JOIN sessions s USING (session_id)"
)


@dataclass(slots=True)
class Story:
    """What is known of `name`: `lines` in any order, the ids of turns and calls, and what was `unavailable` and why."""

    name: str
    lines: list[Line] = field(default_factory=list[Line])
    turns: dict[str, None] = field(default_factory=dict[str, None])
    calls: dict[str, None] = field(default_factory=dict[str, None])
    unavailable: list[str] = field(default_factory=list[str])

    def add(self, source: str, at_ms: int, text: str) -> None:
        """Add something that happened."""
        self.lines.append(Line(at_ms, source, text, {}))

    def names(self) -> set[str]:
        """Every id by which lines of logs may name it."""
        one_call = self.name in self.calls
        own_traces = () if one_call else (turn.replace("-", "") for turn in self.turns)
        return {self.name, *self.calls, *(() if one_call else self.turns), *own_traces}


def trace(settings: OperatorSettings, name: str, logs: Sequence[Path]) -> int:
    """Print the history of `name`; returns the exit code."""
    story = Story(name)
    try:
        with opened(settings) as query:
            _from_store(story, query, settings.cipher)
    except StorageUnavailableError as error:
        story.unavailable.append(f"the store: {error}")
    try:
        _from_logs(story, logs)
    except OSError as error:
        sys.stderr.write(f"dialog-engine trace: --log {error.filename}: {error.strerror}\n")
        return WRONG
    if not logs:
        story.unavailable.append("the logs: none was given (--log)")
    asyncio.run(_from_redis(story, settings))
    for line in sorted(story.lines, key=lambda line: line.at_ms):
        print(f"{_moment(line.at_ms)}  {visible(line.source):<10}  {visible(line.text)}")  # noqa: T201
    if not story.lines:
        sys.stderr.write(f"Nothing is known of the call, turn, session or trace '{visible(name)}'.\n")
    for each in story.unavailable:
        sys.stderr.write(f"Not available: {visible(each)}\n")
    return DONE if story.lines else NOT_FOUND


# --- The store ---


def _from_store(story: Story, query: Query, cipher: Cipher) -> None:
    """What the store has; of a session that was erased what the audit has."""
    name = call_of_round(story.name)
    if calls := query("SELECT turn_id FROM tool_calls WHERE correlation_id = $1", name):
        story.turns[calls[0].turn_id] = None
        story.calls[name] = None
        _calls(story, query, cipher, calls[0].turn_id, only=name)
        return
    for turn in _turns(query, name):
        story.turns[turn.turn_id] = None
        _turn(story, turn)
        _calls(story, query, cipher, turn.turn_id)
    if not story.turns:
        for row in events(query, AuditFilter(name=name)):
            story.add("audit", row["at"], as_text(row))
            story.turns |= {row["turn_id"]: None} if row["turn_id"] else {}
            story.calls |= {row["correlation_id"]: None} if row["correlation_id"] else {}


def _turns(query: Query, name: str) -> Sequence[Row]:
    """The turns of that id, of that session or of that trace."""
    for condition, value in (("t.turn_id = $1", name), ("t.session_id = $1", name)):
        order = " ORDER BY t.created_at DESC LIMIT $2"
        if found := query(f"SELECT {_TURN} WHERE {condition}{order}", value, MAX_TURNS):
            return found
    with suppress(ValueError):
        own = str(UUID(name))
        # A turn without a trace of its client has that of its own id, which an index finds.
        return query(f"SELECT {_TURN} WHERE t.turn_id = $1", own) or query(
            f"SELECT {_TURN} WHERE t.traceparent LIKE $1 LIMIT $2", f"__-{own.replace('-', '')}-%", MAX_TURNS
        )
    return ()


def _turn(story: Story, turn: Row) -> None:
    named = f"turn {turn.turn_id}"
    story.add("store", turn.created_at, f"{named} of session {turn.session_id} was accepted from {turn.subject}")
    if turn.finished_at is None:
        crashed = f", after {turn.crashes} crashes" if turn.crashes else ""
        where = f"at engine {turn.owner}, epoch {turn.epoch}{crashed}"
        if not turn.owner:
            where = f"and parked: it waits for its user, epoch {turn.epoch}"
        story.add("store", _now_ms(), f"{named} is {turn.status} {where}")
        return
    error = f" with {turn.error_code}" if turn.error_code else ""
    tokens = f"{turn.input_tokens} + {turn.output_tokens} tokens"
    cost = f"{turn.rounds} rounds, {tokens}, model {turn.model or '(none)'}"
    story.add("store", turn.finished_at, f"{named} ended: {turn.status}, {turn.reason}{error}; {cost}")


def _calls(story: Story, query: Query, cipher: Cipher, turn_id: str, only: str = "") -> None:
    rows = query(
        "SELECT c.correlation_id, c.server, c.name, c.execution_class, c.created_at, c.answered_at, c.outcome,"
        " a.correlation_id AS asked, a.decision, o.published_at, o.attempts, o.error"
        " FROM tool_calls c LEFT JOIN approvals a USING (correlation_id)"
        f" LEFT JOIN outbox o ON o.event_id = {REQUEST_ID} AND o.event_type = 'PluginToolCallRequested'"
        " WHERE c.turn_id = $1 AND ($2 = '' OR c.correlation_id = $2) ORDER BY c.created_at LIMIT $3",
        turn_id,
        only,
        MAX_CALLS,
    )
    for row in rows:
        story.calls[row.correlation_id] = None
        call, of = f"call {row.correlation_id}", f" of server {row.server}" if row.server else ""
        story.add("store", row.created_at, f"{call} of tool {row.name}{of} was committed, in turn {turn_id}")
        if row.execution_class == CLIENT_CLASS:
            story.add("store", row.created_at, f"{call} is for its client to run, and needs no worker")
        elif row.asked:
            state = "was decided on" if row.decision is not None else "waits for a person"
            story.add("store", row.created_at, f"{call} needs approval, and {state}")
        if row.answered_at is not None:
            story.add("store", row.answered_at, f"{call} ended: {_outcome(cipher, row.correlation_id, row.outcome)}")
        elif row.published_at is not None:
            story.add("store", row.published_at, f"{call} was published, and has no answer")
        elif row.attempts is not None:
            why = f": {row.error}" if row.error else ""
            story.add("store", _now_ms(), f"{call} is in the outbox after {row.attempts} failed attempts{why}")
    for call, number, said in questions_of(query, cipher, turn_id, only, MAX_CALLS):
        story.calls[round_id(call, number + 1)] = None
        for at, what in said:
            story.add("store", at, f"call {call}: {what}")


def _outcome(cipher: Cipher, call: str, stored: bytes) -> str:
    """How a call ended, without its result."""
    try:
        outcome = msgspec.json.decode(open_value(cipher, bytes(stored), "tool_calls.outcome", call), type=ToolOutcome)
    except DecryptionError:
        return "its outcome is encrypted (ENCRYPTION_KEYS_FILE)"
    except NOT_READABLE:
        return "its outcome cannot be read by this release"
    return f"{outcome.state} {outcome.error.code}" if outcome.error else str(outcome.state)


# --- The logs ---


def _from_logs(story: Story, logs: Sequence[Path]) -> None:
    names = story.names()
    found = [line for path in logs for line in _of_file(names, path)]
    story.lines += found
    if logs and not found:
        story.unavailable.append("the logs: no line names it")
    for line in found:  # also what the store has not, because it is away
        if call := line.ids.get("correlationId"):
            story.calls[call] = None
        if (turn := line.ids.get("turnId")) and story.name not in story.calls:
            story.turns[turn] = None


def _of_file(names: Iterable[str], path: Path) -> Iterator[Line]:
    if path == STDIN:
        sys.stdin.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]  # a text file
        yield from lines_about([*names], sys.stdin, "log")
        return
    with path.open(encoding="utf-8", errors="backslashreplace") as file:
        yield from lines_about([*names], file, path.name)


# --- Redis ---


async def _from_redis(story: Story, settings: OperatorSettings) -> None:
    redis: Any = command_client(settings.redis_address, connections=1, timeout=REDIS_SECONDS)
    keys = Keys(settings.redis_key_prefix)
    try:
        if await redis.exists(keys.call(story.name)):
            story.calls[story.name] = None
        elif not story.calls:
            turns = story.turns or {_as_turn(story.name): None}
            for turn in turns:
                story.calls |= dict.fromkeys(await _calls_of_log(redis, keys, settings.cipher, turn))
        for call in [*story.calls][:MAX_CALLS]:
            await _ledger(story, redis, keys, call)
    except RedisUnavailable as error:
        story.unavailable.append(f"Redis at {settings.redis_address}: {error}")
    finally:
        await redis.aclose()


def _as_turn(name: str) -> str:
    """The turn of an id, or of a trace that a turn began by itself: its id without hyphens."""
    with suppress(ValueError):
        return str(UUID(name))
    return name


async def _calls_of_log(redis: Any, keys: Keys, cipher: Cipher, turn: str) -> list[str]:
    """The correlation ids in the log of a turn's events."""
    entries = await redis.xrange(keys.turn(turn), count=MAX_CALLS * 10)
    found: list[str] = []
    for entry, fields in entries:
        with suppress(*NOT_READABLE, DecryptionError):
            data = cipher.open(fields.get(b"data", b""), entry_owner(turn, entry.decode()))
            call = msgspec.json.decode(data, type=dict[str, Any]).get("correlationId")
            found += [call] if isinstance(call, str) else []
    return [*dict.fromkeys(found)]


async def _ledger(story: Story, redis: Any, keys: Keys, call: str) -> None:
    stored: dict[bytes, bytes] = await redis.hgetall(keys.call(call))
    known = {name.decode(): value.decode(errors="backslashreplace") for name, value in stored.items()}

    def add(at: str | int, text: str) -> None:
        story.add("ledger", int(at), f"call {call} {text}")

    if at := known.get("publishedAt"):
        where = f"entry {known.get('entry', '?')} of {known.get('stream', keys.requests)}"
        add(at, f"published as {where}, class {known.get('class', '?')}")
    for each in read_history(known.get("history", "")):
        add(each.at_ms, f"{each.what} by {each.worker}")
    if at := known.get("finishedAt"):
        again = f"; an operator ran it again as {known['requeuedAs']}" if "requeuedAs" in known else ""
        add(at, f"{known.get('state')} after {known.get('starts', '?')} starts{again}")
    elif at := known.get("renewedAt"):
        add(at, f"still {known.get('state')}: last renewal of its lease by {known.get('owner', '?')}")


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def _moment(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
