"""The table `usage`: a turn is counted in the transaction that ends it, under the day (UTC) on which it ends.

So it is counted once, whichever engine ends it, and is there for as long as its row, whatever becomes of its session.

Every transaction locks rows of one subject in the order of their keys, and those of nobody by name after them: two
transactions never wait for each other.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

from dialog_engine.consumption.usage import DAY_MS, Key, UsageReport, Used, Wanted
from dialog_engine.model import Done, Turn, Usage
from dialog_engine.storage.audit import TEXT_MAX, fitted
from dialog_engine.storage.database import Database, Row, placeholders
from dialog_engine.storage.store import StoreTransaction
from dialog_engine.tool_calls.ports import OWN_SERVER
from dialog_engine.tool_calls.values import CLIENT_CLASS

SHARDS = 8
"""The rows of one subject, model and day to which engines add: each commit on PostgreSQL locks one of them."""
_KEY = "day, subject, model, server, tool"
_COUNTS = ("turns", "estimated", "input_tokens", "output_tokens", "calls")
_COLUMNS = (*_KEY.split(", "), "shard", *_COUNTS)
_LOCK = (
    "UPDATE usage SET turns = turns WHERE day = $1 AND subject = $2 AND model = $3 AND server = $4 AND tool = $5"
    " AND shard = $6"
)
_SUMS = ", ".join(f"{each} = usage.{each} + excluded.{each}" for each in _COUNTS)
_ADD = (
    f"INSERT INTO usage ({', '.join(_COLUMNS)}) VALUES ({placeholders(1, len(_COLUMNS))})"
    f" ON CONFLICT ({_KEY}, shard) DO UPDATE SET {_SUMS}"
)
_CALLS = (
    "SELECT server, CASE tool WHEN '' THEN name ELSE tool END AS called, count(*) AS calls FROM tool_calls"
    f" WHERE turn_id = $1 AND ran = 1 AND server <> $2 AND execution_class <> '{CLIENT_CLASS}' GROUP BY server, called"
)
PAGE = (
    f"SELECT {_KEY}, {', '.join(f'CAST(sum({each}) AS bigint) AS {each}' for each in _COUNTS)} FROM usage"
    " WHERE day >= $1 AND day <= $2 AND ($3 = '' OR subject = $3) AND ($4 = '' OR model = $4)"
    f" AND ($5 = '' OR tool = $5 OR server = $5) AND ({_KEY}) > ($6, $7, $8, $9, $10)"
    f" GROUP BY {_KEY} ORDER BY {_KEY} LIMIT $11"
)


class SqlUsage(UsageReport):
    """What all engines have counted."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, wanted: Wanted, after: Key | None, limit: int) -> Sequence[Used]:
        return used(await self._database.read(PAGE, *parameters(wanted, after, limit)))


def parameters(wanted: Wanted, after: Key | None, limit: int) -> tuple[object, ...]:
    """Those of PAGE."""
    subject, place = fitted(wanted.subject, TEXT_MAX), after or (wanted.first - 1, "", "", "", "")
    return wanted.first, wanted.last, subject, wanted.model, wanted.tool, *place, limit


def used(rows: Iterable[Row]) -> list[Used]:
    """The rows of PAGE."""
    return [Used(**row.by_name()) for row in rows]


def count_turn(tx: StoreTransaction, turn: Turn, done: Done, last_model: str, *, at: int) -> None:
    """Count a turn that has ended `at`, in Unix milliseconds. What no model is known for belongs to `last_model`."""
    rest = done.usage
    for usage in done.by_model.values():
        rest -= usage
    tokens = defaultdict(Usage, done.by_model)
    tokens[last_model] += rest
    whose, shard = (at // DAY_MS, fitted(turn.subject, TEXT_MAX)), crc32(tx.engine_id.encode()) % SHARDS
    rows: list[tuple[Any, ...]] = []
    for model, usage in tokens.items():
        turns = int(model == last_model)
        spent = usage.input_tokens, usage.output_tokens
        rows.append((*whose, model, "", "", shard, turns, turns * done.usage.estimated, *spent, 0))
    ran = tx.execute(_CALLS, turn.turn_id, OWN_SERVER)
    rows += [(*whose, "", row.server, row.called, shard, 0, 0, 0, 0, row.calls) for row in ran]
    tx.execute_many(_ADD, sorted(rows))


def forget_subjects(tx: StoreTransaction, subjects: Iterable[str]) -> None:
    """Add what these subjects have used to what nobody has used by name."""
    found: list[tuple[Any, ...]] = []
    for subject in sorted({fitted(each, TEXT_MAX) for each in subjects}):
        tx.execute_many(_LOCK, sorted(tx.execute(f"SELECT {_KEY}, shard FROM usage WHERE subject = $1", subject)))
        rows = tx.execute(f"DELETE FROM usage WHERE subject = $1 RETURNING {', '.join(_COLUMNS)}", subject)
        found += [tuple((row.by_name() | {"subject": ""}).values()) for row in rows]
    tx.execute_many(_ADD, sorted(found))
