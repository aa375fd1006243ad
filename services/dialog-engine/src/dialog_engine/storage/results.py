"""Results that were too long to be shown, whole."""

from collections.abc import Sequence

import msgspec

from dialog_engine.model import Turn
from dialog_engine.storage.database import Database, Row, Transaction
from dialog_engine.tool_calls.ports import KeptResult, ResultStore
from dialog_engine.tool_calls.results.shortening import WholeResult, whole_of
from plugins_contract.outcomes import ToolOutcome

_FROM = (
    "FROM tool_calls c JOIN turns t USING (turn_id)"
    " JOIN sessions s USING (session_id) LEFT JOIN whole_results w USING (correlation_id)"
    " WHERE s.session_id = $1 AND s.subject = $2 AND c.outcome IS NOT NULL"
)
MIN_NAME = 8
"""Characters of a correlation id that name a result."""


def keep_whole(tx: Transaction, correlation_id: str, whole: WholeResult) -> None:
    """Keep all the text of a result."""
    tx.execute(
        "INSERT INTO whole_results (correlation_id, whole) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        correlation_id,
        msgspec.json.encode(whole),
    )


class SqlResults(ResultStore):
    """The results of all sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def result(self, turn: Turn, name: str) -> KeptResult | None:
        if len(name) < MIN_NAME:
            return None
        rows = await self._database.read(
            f"SELECT c.correlation_id, c.name, c.outcome, w.whole {_FROM}"
            " AND substr(c.correlation_id, length(c.correlation_id) - length($3) + 1) = $3 LIMIT 1",
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
    return KeptResult(correlation_id, name, whole_result(outcome, whole))


def whole_result(outcome: bytes, whole: bytes | None) -> WholeResult:
    """All the text of an outcome: what is kept beside it, where it was cut."""
    if whole is not None:
        return msgspec.json.decode(whole, type=WholeResult)
    return whole_of(msgspec.json.decode(outcome, type=ToolOutcome))
