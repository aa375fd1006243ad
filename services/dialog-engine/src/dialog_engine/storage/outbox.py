"""The outbox table."""

from collections.abc import Iterable, Sequence

from dialog_engine.chat.outbox import Outbox, OutboxRow
from dialog_engine.storage.database import Database, Row, Transaction, now_ms
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED

_SELECT = "SELECT seq, event_type, event_id, payload, attempts, next_at FROM outbox WHERE "
# Two ranges of one index, so that thousands of rows that are known already are not even touched. What was put off has
# a `next_at`.
_WAITING = (
    f"{_SELECT} published_at IS NULL AND next_at = 0 AND seq > ?"
    f" UNION ALL {_SELECT} published_at IS NULL AND next_at > 0 AND next_at <= ?"
    " ORDER BY next_at, seq LIMIT ?"
)


def add_event(tx: Transaction, event_type: str, event_id: str, payload: bytes) -> OutboxRow:
    """Put an event into the outbox as part of a transaction."""
    [(seq,)] = tx.execute(
        "INSERT INTO outbox (event_type, event_id, payload, created_at) VALUES (?, ?, ?, ?) RETURNING seq",
        event_type,
        event_id,
        payload,
        now_ms(),
    )
    return OutboxRow(seq, event_type, event_id, payload)


class SqliteOutbox(Outbox):
    """The outbox of this engine."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def waiting(self, limit: int, *, after: int = 0) -> Sequence[OutboxRow]:
        return _rows(await self._database.read(_WAITING, after, now_ms(), limit))

    async def calls(self, correlation_ids: Sequence[str]) -> Sequence[OutboxRow]:
        marks = ", ".join("?" * len(correlation_ids))
        where = f"published_at IS NULL AND event_type = ? AND event_id IN ({marks}) ORDER BY seq"
        return _rows(await self._database.read(_SELECT + where, TOOL_CALL_REQUESTED, *correlation_ids))

    async def unanswered(self) -> Sequence[OutboxRow]:
        where = "published_at IS NOT NULL AND event_type = ? ORDER BY seq"
        return _rows(await self._database.read(_SELECT + where, TOOL_CALL_REQUESTED))

    async def published(self, rows: Sequence[OutboxRow]) -> None:
        def unit(tx: Transaction) -> None:
            calls = [(now_ms(), row.seq) for row in rows if row.event_type == TOOL_CALL_REQUESTED]
            facts = [(row.seq,) for row in rows if row.event_type != TOOL_CALL_REQUESTED]
            if calls:
                tx.execute_many("UPDATE outbox SET published_at = ?, error = NULL WHERE seq = ?", calls)
            if facts:
                tx.execute_many("DELETE FROM outbox WHERE seq = ?", facts)

        await self._database.write(unit)

    async def postpone(self, row: OutboxRow, error: str, retry_in_ms: int) -> None:
        def unit(tx: Transaction) -> None:
            tx.execute(
                "UPDATE outbox SET attempts = attempts + 1, error = ?, next_at = ? WHERE seq = ?",
                error,
                now_ms() + retry_in_ms,
                row.seq,
            )

        await self._database.write(unit)

    async def event_types(self) -> frozenset[str]:
        """The types of the rows that are there; a start with one that has no route must fail."""
        return frozenset(row[0] for row in await self._database.read("SELECT DISTINCT event_type FROM outbox"))

    async def backlog(self) -> tuple[int, int]:
        """How many rows are not published, and the age of the oldest in milliseconds (0 when there is none)."""
        [(count, oldest)] = await self._database.read(
            "SELECT count(*), min(created_at) FROM outbox WHERE published_at IS NULL"
        )
        return count, max(0, now_ms() - oldest) if count else 0


def _rows(rows: Iterable[Row]) -> list[OutboxRow]:
    return [OutboxRow(*row[:5]) for row in rows]
