"""The outbox table: committed events that are not published yet. Each engine publishes the rows that it owns."""

from collections.abc import Iterable, Sequence

from dialog_engine.chat.outbox import Outbox, OutboxRow
from dialog_engine.chat.waiting_messages import HeldReason
from dialog_engine.storage.database import Row, Transaction, placeholders
from dialog_engine.storage.store import EngineDatabase, SealedTransaction
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED

_SELECT = "SELECT seq, event_type, event_id, payload, attempts, offered_to, next_at FROM outbox WHERE "
# Two ranges of one index, so that thousands of rows that are known already are not read. Postponed rows have a
# `next_at`.
_WAITING = (
    f"{_SELECT} owner = $1 AND published_at IS NULL AND next_at = 0 AND seq > $2"
    f" UNION ALL {_SELECT} owner = $1 AND published_at IS NULL AND next_at > 0 AND next_at <= now_ms()"
    " ORDER BY next_at, seq LIMIT $3"
)


RESTORED_AT = "restored_at"
"""The row of `meta` with the time of the last restore of a backup. What is older may have gone on after the backup."""


def mark_restored(tx: Transaction) -> int:
    """Note that the store is a restored backup: each call without an answer may have been offered to any incarnation of
    Redis, whatever its row says, and each message that waits may have been sent. Returns how many calls have a row.

    A call that waits for an approval has none yet: `approvals` looks when it is approved.
    """
    tx.execute(
        "INSERT INTO meta (key, value) VALUES ($1, CAST(now_ms() AS TEXT))"
        " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        RESTORED_AT,
    )
    tx.change("UPDATE waiting_messages SET held = $1, released = 0 WHERE withdrawn_at IS NULL", HeldReason.RESTORED)
    return tx.change("UPDATE outbox SET offered_to = NULL WHERE event_type = $1", TOOL_CALL_REQUESTED)


class SqlOutbox(Outbox):
    """The rows of one engine."""

    def __init__(self, engine: EngineDatabase) -> None:
        self._engine = engine

    async def waiting(self, limit: int, *, after: int = 0) -> Sequence[OutboxRow]:
        return rows_of(await self._engine.read(_WAITING, self._engine.engine_id, after, limit))

    async def calls(self, correlation_ids: Sequence[str]) -> Sequence[OutboxRow]:
        ids = placeholders(2, len(correlation_ids))
        where = f"published_at IS NULL AND event_type = $1 AND event_id IN ({ids}) ORDER BY seq"
        return rows_of(await self._engine.read(_SELECT + where, TOOL_CALL_REQUESTED, *correlation_ids))

    async def unanswered(self) -> Sequence[OutboxRow]:
        where = "owner = $1 AND published_at IS NOT NULL AND event_type = $2 ORDER BY seq"
        return rows_of(await self._engine.read(_SELECT + where, self._engine.engine_id, TOOL_CALL_REQUESTED))

    async def published(self, rows: Sequence[OutboxRow]) -> None:
        def unit(tx: SealedTransaction) -> None:
            # In the order of their numbers, so that two engines that mark the same rows do not deadlock.
            calls = sorted((row.seq,) for row in rows if row.event_type == TOOL_CALL_REQUESTED)
            facts = sorted((row.seq,) for row in rows if row.event_type != TOOL_CALL_REQUESTED)
            if calls:
                tx.execute_many("UPDATE outbox SET published_at = now_ms(), error = NULL WHERE seq = $1", calls)
            if facts:
                tx.execute_many("DELETE FROM outbox WHERE seq = $1", facts)

        await self._engine.write(unit)

    async def stamp(self, rows: Sequence[OutboxRow], incarnation: str) -> frozenset[int]:
        def unit(tx: SealedTransaction) -> frozenset[int]:
            seqs = sorted(row.seq for row in rows)
            stamped = tx.execute(
                "UPDATE outbox SET offered_to = $1 WHERE owner = $2 AND published_at IS NULL"
                f" AND seq IN ({placeholders(3, len(seqs))}) RETURNING seq",
                incarnation,
                self._engine.engine_id,
                *seqs,
            )
            return frozenset(row.seq for row in stamped)

        return await self._engine.write(unit)

    async def postpone(self, row: OutboxRow, error: str, retry_in_ms: int) -> None:
        def unit(tx: SealedTransaction) -> None:
            tx.execute(
                "UPDATE outbox SET attempts = attempts + 1, error = $1, next_at = now_ms() + $2 WHERE seq = $3",
                error,
                retry_in_ms,
                row.seq,
            )

        await self._engine.write(unit)

    async def event_types(self) -> frozenset[str]:
        """The event types in the table. The engine does not start when one of them has no route."""
        return frozenset(row.event_type for row in await self._engine.read("SELECT DISTINCT event_type FROM outbox"))

    async def backlog(self) -> tuple[int, int]:
        """How many rows are not published, and the age of the oldest in milliseconds (0 when there is none)."""
        [row] = await self._engine.read(
            "SELECT count(*) AS waiting, now_ms() - min(created_at) AS age FROM outbox"
            " WHERE owner = $1 AND published_at IS NULL",
            self._engine.engine_id,
        )
        return row.waiting, max(0, row.age or 0)


def rows_of(rows: Iterable[Row]) -> list[OutboxRow]:
    """Rows of the table."""
    return [OutboxRow(row.seq, row.event_type, row.event_id, row.payload, row.attempts, row.offered_to) for row in rows]
