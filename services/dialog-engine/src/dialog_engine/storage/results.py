"""Results of which a part was left out, as `read_result` reads them: those of the path to a turn."""

from collections.abc import Sequence

import msgspec

from dialog_engine.model import Turn
from dialog_engine.storage.branches import PATH
from dialog_engine.storage.database import Row
from dialog_engine.storage.store import SealedDatabase
from dialog_engine.tool_calls.ports import KeptResult, ResultStore
from dialog_engine.tool_calls.results.texts import whole_of
from dialog_engine.tool_calls.values import WholeResult
from plugins_contract.outcomes import ToolOutcome

MIN_NAME = 8
"""The least number of characters of a correlation id that name a result: its end, which an index finds."""
_FROM = (
    "FROM {} c JOIN turns t USING (turn_id)"
    " JOIN sessions s USING (session_id) LEFT JOIN whole_results w USING (correlation_id)"
    " WHERE s.session_id = $1 AND s.subject = $2 AND c.outcome IS NOT NULL AND t.turn_id IN (SELECT turn_id FROM path)"
)
_PATH = PATH.format("$3", "''")
NAMED = (
    f"{_PATH}, named AS MATERIALIZED (SELECT * FROM tool_calls"
    " WHERE substr(correlation_id, length(correlation_id) - 7) = $4)"
    f" SELECT c.correlation_id, c.name, c.outcome, w.whole {_FROM.format('named')}"
    " AND substr(c.correlation_id, length(c.correlation_id) - length($5) + 1) = $5 LIMIT 1"
)
_CUT = (
    f"{_PATH}SELECT c.correlation_id, c.name {_FROM.format('tool_calls')} AND w.whole IS NOT NULL"
    " ORDER BY c.answered_at DESC LIMIT 10"
)


class SqlResults(ResultStore):
    """The results of all sessions."""

    def __init__(self, store: SealedDatabase) -> None:
        self._store = store

    async def result(self, turn: Turn, name: str) -> KeptResult | None:
        if len(name) < MIN_NAME:
            return None
        rows = await self._store.read(NAMED, turn.session_id, turn.subject, turn.turn_id, name[-MIN_NAME:], name)
        return _kept(rows[0]) if rows else None

    async def cut_results(self, turn: Turn) -> Sequence[tuple[str, str]]:
        rows = await self._store.read(_CUT, turn.session_id, turn.subject, turn.turn_id)
        return [(row.correlation_id, row.name) for row in rows]


def _kept(row: Row) -> KeptResult:
    """A row, whose whole text is stored separately where the outcome has a part."""
    if (whole := row.whole) is None:
        return KeptResult(row.correlation_id, row.name, whole_of(msgspec.json.decode(row.outcome, type=ToolOutcome)))
    return KeptResult(row.correlation_id, row.name, msgspec.json.decode(whole, type=WholeResult))
