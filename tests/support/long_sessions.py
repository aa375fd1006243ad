"""A session of any length, written directly into a store, and a count of what is read of it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from dialog_engine.storage.database import Committed, Database, Row, Transaction, Unit, ignore
from plugins_contract.outcomes import CallState, MediaBlock, TextBlock, ToolOutcome


def write_session(
    tx: Transaction,
    session_id: str,
    subject: str,
    turns: int,
    *,
    text: str = "word " * 40,
    image: str = "",
    each: int = 5,
) -> None:
    """Insert a session of `turns` turns, each with a question and an answer. Every fifth
    turn has made a call, whose result has the `image` (base64) as the releases before ADR 0061 stored it."""
    session = "INSERT INTO sessions (session_id, subject, title, created_at, updated_at) VALUES ($1, $2, 'long', 1, 1)"
    tx.execute(session, session_id, subject)
    ids = [f"{session_id}-{number:06}" for number in range(turns)]
    tx.execute_many(
        "INSERT INTO turns (turn_id, session_id, status, reason, created_at) VALUES ($1, $2, 'done', 'stop', $3)",
        [(turn_id, session_id, number) for number, turn_id in enumerate(ids)],
    )
    tx.execute_many(
        "INSERT INTO messages (session_id, turn_id, number, role, content, created_at) VALUES ($1, $2, $3, $4, $5, 1)",
        [
            (session_id, turn_id, 2 * number + place, role, f"{role} {number}: {text}")
            for number, turn_id in enumerate(ids)
            for place, role in ((1, "user"), (2, "assistant"))
        ],
    )
    blocks = (TextBlock("Click."), *([MediaBlock("image/png", image)] if image else ()))
    outcome = msgspec.json.encode(ToolOutcome(CallState.SUCCEEDED, blocks))
    tx.execute_many(
        "INSERT INTO tool_calls (correlation_id, message_id, turn_id, ordinal, tool_call_id, name, server, arguments,"
        " outcome, created_at, answered_at) VALUES ($1, (SELECT message_id FROM messages WHERE turn_id = $2"
        " AND role = 'assistant'), $2, 0, 'call_1', 'camera__photo', 'camera', '{}', $3, 1, 1)",
        [(f"call-of-{turn_id}", turn_id, outcome) for turn_id in ids[::5]],
    )


class CountedReads(Database):
    """A database that counts the bytes of all rows that are read from it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.commits = 0
        self.read_bytes = 0
        self.largest_read = 0

    async def write(self, unit: Unit[Any], committed: Committed[Any] = ignore) -> Any:
        return await self._database.write(unit, committed)

    async def read(self, sql: str, *parameters: Any) -> list[Row]:
        rows = await self._database.read(sql, *parameters)
        size = sum(_bytes_of(row) for row in rows)
        self.read_bytes, self.largest_read = self.read_bytes + size, max(self.largest_read, size)
        return rows

    async def check(self) -> None:
        await self._database.check()

    async def engine_id(self) -> str:
        return await self._database.engine_id()


def _bytes_of(row: Sequence[Any]) -> int:
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
