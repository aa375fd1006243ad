"""The engines that share the database: their leases, and the adoption of turns.

`lease_until` is on the clock of the database and is for operators. Engines do not compare it with any clock: see
`chat.ownership`.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.chat.ports import Adopted, Engines, OwnedTurn, SeenEngine
from dialog_engine.model import Turn
from dialog_engine.storage.database import placeholders
from dialog_engine.storage.outbox import rows_of
from dialog_engine.storage.schemas import RELEASE
from dialog_engine.storage.store import EngineDatabase, SealedTransaction
from dialog_engine.storage.turns import TURN_COLUMNS, turn_of
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import UnsupportedEventError, decode_request, encode_request

LONG_MS = 60_000
"""When an owner has had a turn for this long, its death is not counted as a crash of the turn."""
CHECKED_AT_ONCE = 500

_RENEW = (
    "INSERT INTO engines (engine_id, lease_until, release, started_at) VALUES ($1, now_ms() + $2, $3, now_ms())"
    " ON CONFLICT (engine_id) DO UPDATE SET lease_until = excluded.lease_until"
)
_ANEW = ", release = excluded.release, started_at = excluded.started_at"
_NO_LEASE = -1
"""Stands for the lease of an engine that was deleted and then began a turn before its next renewal."""
_OTHERS = (
    "SELECT engine_id, lease_until FROM engines WHERE engine_id <> $1"
    " UNION SELECT owner, $2 FROM turns WHERE status = 'running' AND owner <> $1"
    " AND owner NOT IN (SELECT engine_id FROM engines) AND (owner <> '' OR parked_until IS NULL)"
)
_OWNED = "SELECT turn_id, epoch, stop_requested FROM turns WHERE owner = $1 AND status = 'running'"
_ADOPT = (
    "UPDATE turns SET owner = $1, epoch = epoch + 1, owned_since = now_ms(),"
    " crashes = CASE WHEN $2 = 1 OR now_ms() - owned_since >= $3 THEN 0 ELSE crashes + 1 END"
    " WHERE turn_id IN (SELECT turn_id FROM turns WHERE owner = $4 AND status = 'running'{} ORDER BY created_at"
    f" LIMIT $5 {{}}) RETURNING {TURN_COLUMNS}, stop_requested, crashes"
)


class SqlEngines(Engines):
    """The leases as this engine sees them."""

    def __init__(self, engine: EngineDatabase) -> None:
        self._engine = engine
        self._engine_id = engine.engine_id

    async def register(self, lease_ms: int) -> bool:
        def unit(tx: SealedTransaction) -> bool:
            before = tx.execute("SELECT lease_until FROM engines WHERE engine_id = $1", self._engine_id)
            tx.execute(_RENEW + _ANEW, self._engine_id, lease_ms, RELEASE)
            return bool(before) and before[0].lease_until == 0

        return await self._engine.write(unit)

    async def renew(self, lease_ms: int) -> Sequence[OwnedTurn]:
        def unit(tx: SealedTransaction) -> list[OwnedTurn]:
            tx.execute(_RENEW, self._engine_id, lease_ms, RELEASE)
            return [
                OwnedTurn(row.turn_id, row.epoch, bool(row.stop_requested))
                for row in tx.execute(_OWNED, self._engine_id)
            ]

        return await self._engine.write(unit)

    async def stop_requests(self) -> Sequence[str]:
        rows = await self._engine.read(f"{_OWNED} AND stop_requested = 1", self._engine_id)
        return [row.turn_id for row in rows]

    async def fenced(self, turns: Sequence[Turn]) -> Sequence[str]:
        found: set[str] = set()
        for at in range(0, len(turns), CHECKED_AT_ONCE):
            some = turns[at : at + CHECKED_AT_ONCE]
            rows = await self._engine.read(
                f"SELECT turn_id, owner, epoch FROM turns WHERE turn_id IN ({placeholders(1, len(some))})",
                *(turn.turn_id for turn in some),
            )
            # In the same epoch nobody else has it: it is parked.
            ours = {(row.turn_id, row.epoch) for row in rows if row.owner in (self._engine_id, "")}
            found |= {turn.turn_id for turn in some if (turn.turn_id, turn.epoch) not in ours}
        return [*found]

    async def others(self) -> Sequence[SeenEngine]:
        rows = await self._engine.read(_OTHERS, self._engine_id, _NO_LEASE)
        return [SeenEngine(row.engine_id, row.lease_until) for row in rows]

    async def adopt(self, seen: SeenEngine, limit: int) -> Sequence[Adopted]:
        def unit(tx: SealedTransaction) -> list[Adopted]:
            return self._adopt(tx, seen.engine_id, seen.released, limit) if _is_as_seen(tx, seen) else []

        return await self._engine.write(unit)

    async def adopt_own(self, turn_ids: Sequence[str] | None, *, released: bool = False) -> Sequence[Adopted]:
        if turn_ids is not None and not turn_ids:
            return []

        def unit(tx: SealedTransaction) -> list[Adopted]:
            return self._adopt(tx, self._engine_id, released, 1_000_000, turn_ids)

        return await self._engine.write(unit)

    async def remove(self, seen: SeenEngine) -> Sequence[OutboxRow] | None:
        def unit(tx: SealedTransaction) -> list[OutboxRow] | None:
            running = tx.execute(f"{_OWNED} LIMIT 1", seen.engine_id)
            if running or not _is_as_seen(tx, seen):
                return None
            tx.execute("DELETE FROM engines WHERE engine_id = $1", seen.engine_id)
            return self._take_rows(tx, "owner = $1", seen.engine_id)

        return await self._engine.write(unit)

    async def release(self) -> None:
        def unit(tx: SealedTransaction) -> None:
            tx.execute("UPDATE engines SET lease_until = 0 WHERE engine_id = $1", self._engine_id)

        await self._engine.write(unit)

    def _adopt(
        self, tx: SealedTransaction, owner: str, released: bool, limit: int, turn_ids: Sequence[str] | None = None
    ) -> list[Adopted]:
        which = f" AND turn_id IN ({placeholders(6, len(turn_ids))})" if turn_ids is not None else ""
        statement = _ADOPT.format(which, tx.skip_locked)
        rows = tx.execute(
            statement,
            self._engine_id,
            int(released),
            LONG_MS,
            owner,
            limit,
            *(turn_ids if turn_ids is not None else ()),
        )
        return [
            Adopted(
                turn_of(tx, row),
                bool(row.stop_requested),
                row.crashes,
                self._take_rows(tx, "turn_id = $1", row.turn_id),
            )
            for row in rows
        ]

    def _take_rows(self, tx: SealedTransaction, which: str, value: str) -> list[OutboxRow]:
        """Become the owner of these outbox rows. Returns the unpublished ones, readdressed to this engine's mailbox.

        A call that was published is not published again, even if Redis has lost its ledger: its answer is found in its
        response channel.
        """
        rows = tx.execute(
            f"UPDATE outbox SET owner = $2, next_at = 0 WHERE {which}"
            " RETURNING seq, event_type, event_id, payload, attempts, offered_to, published_at",
            value,
            self._engine_id,
        )
        waiting = rows_of(row for row in sorted(rows) if row.published_at is None)
        return [self._readdressed(tx, row) for row in waiting]

    def _readdressed(self, tx: SealedTransaction, row: OutboxRow) -> OutboxRow:
        if row.event_type != TOOL_CALL_REQUESTED:
            return row
        try:
            request = decode_request(row.payload)
        except UnsupportedEventError:
            return row  # of another release: publishing it reports what is wrong
        payload = encode_request(msgspec.structs.replace(request, mailbox=self._engine.keys.mailbox(self._engine_id)))
        tx.execute("UPDATE outbox SET payload = $1 WHERE seq = $2", payload, row.seq)
        return replace(row, payload=payload)


def _is_as_seen(tx: SealedTransaction, seen: SeenEngine) -> bool:
    """Whether the engine has not renewed its lease since it was seen."""
    return bool(
        tx.execute(
            "SELECT 1 WHERE coalesce((SELECT lease_until FROM engines WHERE engine_id = $1), $2) = $3",
            seen.engine_id,
            _NO_LEASE,
            seen.lease_until,
        )
    )
