"""Results that were too long to be shown, whole."""

from collections.abc import Sequence

import msgspec

from dialog_engine.model import Turn
from dialog_engine.storage.database import Database, Row, Transaction
from dialog_engine.tool_calls.results import KeptResult, ResultStore
from dialog_engine.tool_calls.texts import WholeResult
from plugins_contract.outcomes import ToolOutcome

_FROM = (
    "FROM tool_calls c JOIN turns t USING (turn_id)"
    " JOIN sessions s USING (session_id) LEFT JOIN whole_results w USING (correlation_id)"
    " WHERE s.session_id = ?1 AND s.subject = ?2 AND c.outcome IS NOT NULL"
)
MIN_NAME = 8
"""Characters of a correlation id that name a result."""


def keep_whole(tx: Transaction, correlation_id: str, whole: WholeResult) -> None:
    """Keep all the text of a result."""
    tx.execute(
        "INSERT OR IGNORE INTO whole_results (correlation_id, whole) VALUES (?, ?)",
        correlation_id,
        msgspec.json.encode(whole),
    )


class SqliteResults(ResultStore):
    """The results in this engine's file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def result(self, turn: Turn, name: str) -> KeptResult | None:
        if len(name) < MIN_NAME:
            return None
        rows = await self._database.read(
            f"SELECT c.correlation_id, c.name, c.outcome, w.whole {_FROM}"
            " AND substr(c.correlation_id, -length(?3)) = ?3 LIMIT 1",
            turn.session_id,
            turn.subject,
            name,
        )
        return _kept(rows[0]) if rows else None

    async def cut_results(self, turn: Turn) -> Sequence[tuple[str, str]]:
        rows = await self._database.read(
            f"SELECT c.correlation_id, c.name {_FROM} AND w.whole IS NOT NULL ORDER BY c.answered_at DESC LIMIT 10",
            turn.session_id,
            turn.subject,
        )
        return [(correlation_id, name) for correlation_id, name in rows]


def _kept(row: Row) -> KeptResult:
    correlation_id, name, outcome, whole = row
    return KeptResult(
        correlation_id,
        name,
        msgspec.json.decode(outcome, type=ToolOutcome),
        None if whole is None else msgspec.json.decode(whole, type=WholeResult),
    )
