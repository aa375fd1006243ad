"""Sessions that are to be erased, until nothing of them is left in the store and in Redis.

A row is committed with the request. It names the session, and has neither text nor subject: of the subject it has a
keyed digest, by which a repeated request finds what is left. `traces` is NULL while the session is in the store, such
as while a turn of it runs. Then it has the ids by which Redis keeps what the session left there.

Rows have no owner: every engine works on those that are due. The table is apart from the outbox because engines of an
earlier release publish whatever they adopt there.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.chat.outbox import AUDIT_RECORDED, OfferRows, OutboxRow
from dialog_engine.errors import SessionNotFoundError, TurnRunningError
from dialog_engine.personal_data.retention import Idle, OldSessions
from dialog_engine.personal_data.service import ErasedSession, Erasures, Left
from dialog_engine.storage.audit import AuditTrail
from dialog_engine.storage.database import Database, Row, Transaction, placeholders
from dialog_engine.storage.usage import forget_subjects

T = TypeVar("T")

DELETED_AT_ONCE = 20
"""How many sessions one transaction deletes."""
BUSY_MS = 2_000
"""When a session with a running turn is looked at again."""
SETTLE_MS = 10_000
"""How long after a deletion its traces are erased. What was on its way to Redis has arrived then: a fact that a relay
had in hand, the last entries of a turn's log."""
CLAIM_MS = 30_000
"""When the traces are due again, if the engine that erases them dies, Redis is away, or a call of them still runs."""
TOGETHER_MS = 60_000
"""How long deletions of one subject that follow each other are waited for, to erase their traces in one pass."""
ERASED_AT_ONCE = 10_000

_LOCK = "UPDATE sessions SET updated_at = updated_at WHERE {} RETURNING session_id, subject, created_at"
_RUNNING = "SELECT session_id, turn_id FROM turns WHERE session_id IN ({}) AND status = 'running'"
_DUE = "SELECT session_id FROM erasures WHERE traces IS NULL AND due_at <= now_ms() ORDER BY session_id LIMIT $1 {}"
_REQUEST = (
    "INSERT INTO erasures (session_id, subject, requested_at, due_at)"
    " SELECT session_id, $1, now_ms(), now_ms() FROM sessions WHERE subject = $2 ON CONFLICT (session_id) DO NOTHING"
)
_DELETED = (
    "INSERT INTO erasures (session_id, subject, requested_at, due_at, traces)"
    " VALUES ($1, $2, now_ms(), now_ms() + $3, $4)"
    " ON CONFLICT (session_id) DO UPDATE SET due_at = excluded.due_at, traces = excluded.traces"
)
_CLAIM = (
    "UPDATE erasures SET due_at = now_ms() + $1 WHERE session_id IN (SELECT session_id FROM erasures"
    " WHERE traces IS NOT NULL AND due_at <= now_ms() AND subject IN (SELECT subject FROM erasures"
    " WHERE traces IS NOT NULL GROUP BY subject HAVING max(due_at) <= now_ms() OR min(due_at) <= now_ms() - $2)"
    " ORDER BY session_id LIMIT $3 {}) RETURNING session_id, traces"
)


class _Traces(msgspec.Struct, frozen=True):
    """The column `traces`."""

    since: int
    turns: frozenset[str]
    calls: frozenset[str]


class SqlErasures(Erasures, OldSessions):
    """The erasures of all subjects."""

    def __init__(self, database: Database, offer: OfferRows, audit: AuditTrail) -> None:
        self._database = database
        self._offer = offer
        self._audit = audit

    async def delete(self, subject: str, session_id: str, *, key_id: str = "") -> Left:
        requested_by = self._digest(subject)

        def unit(tx: Transaction) -> tuple[Left, list[OutboxRow]]:
            # The session's lock first, as a turn that begins takes it.
            found = tx.execute(_LOCK.format("session_id = $1 AND subject = $2"), session_id, subject)
            if running := tx.execute(_RUNNING.format("$1"), session_id) if found else []:
                raise TurnRunningError(running[0][1])
            asked = "SELECT 1 FROM erasures WHERE session_id = $1 AND subject = $2"
            if not found and not tx.execute(asked, session_id, requested_by):
                raise SessionNotFoundError(f"there is no session {session_id}")
            rows = self._delete(tx, found, key_id)
            return _left(tx, requested_by), rows

        return await self._written(unit)

    async def erase(self, subject: str, *, key_id: str = "") -> Left:
        requested_by = self._digest(subject)

        def unit(tx: Transaction) -> tuple[Left, list[OutboxRow]]:
            tx.execute(_REQUEST, requested_by, subject)
            forget_subjects(tx, [subject])
            left = _left(tx, requested_by)
            outcome = f"{left.sessions} sessions to delete, {len(left.running)} of them running"
            done = AuditEvent(AuditAction.DATA_ERASED, subject, key_id=key_id, outcome=outcome)
            return left, self._audit.add(tx, done)

        return await self._written(unit)

    async def due(self) -> Sequence[ErasedSession]:
        if not await self._database.read("SELECT 1 FROM erasures WHERE due_at <= now_ms() LIMIT 1"):
            return []
        while await self._written(self._delete_due):
            pass

        def unit(tx: Transaction) -> list[Row]:
            return tx.execute(_CLAIM.format(tx.skip_locked), CLAIM_MS, TOGETHER_MS, ERASED_AT_ONCE)

        found = [(each, msgspec.json.decode(data, type=_Traces)) for each, data in await self._database.write(unit)]
        return [ErasedSession(each, traces.since, traces.turns, traces.calls) for each, traces in found]

    async def done(self, session_ids: Collection[str]) -> None:
        def unit(tx: Transaction) -> None:
            tx.execute_many("DELETE FROM erasures WHERE session_id = $1", [(each,) for each in sorted(session_ids)])

        await self._database.write(unit)

    async def page(self, after: str, limit: int) -> Sequence[Idle]:
        rows = await self._database.read(
            "SELECT session_id, subject, now_ms() - updated_at FROM sessions WHERE session_id > $1"
            " ORDER BY session_id LIMIT $2",
            after,
            limit,
        )
        return [Idle(*row) for row in rows]

    async def expire(self, session_ids: Sequence[str], idle_ms: int) -> int:
        return sum(
            [
                await self._expire(session_ids[first : first + DELETED_AT_ONCE], idle_ms)
                for first in range(0, len(session_ids), DELETED_AT_ONCE)
            ]
        )

    async def _expire(self, ids: Sequence[str], idle_ms: int) -> int:
        these = placeholders(1, len(ids))
        # Compared again under the session's lock: a message may have come, and another engine may be faster.
        old = f"session_id IN ({these}) AND updated_at < now_ms() - ${len(ids) + 1}"

        def unit(tx: Transaction) -> tuple[int, list[OutboxRow]]:
            found = tx.execute(_LOCK.format(old), *ids, idle_ms)
            running = {each for each, _ in tx.execute(_RUNNING.format(these), *ids)}
            over = [row for row in found if row[0] not in running]
            return len(over), self._delete(tx, over, outcome="retention")

        return await self._written(unit)

    async def backlog(self) -> tuple[int, int]:
        """How many sessions are still to be erased, and the age of the oldest request in milliseconds."""
        [(count, age)] = await self._database.read("SELECT count(*), now_ms() - min(requested_at) FROM erasures")
        return count, max(0, age or 0)

    async def _written(self, unit: Callable[[Transaction], tuple[T, list[OutboxRow]]]) -> T:
        result, rows = await self._database.write(unit)
        if rows:
            self._offer(rows)
        return result

    def _digest(self, subject: str) -> str:
        return self._audit.digest({"subject": subject})

    def _delete_due(self, tx: Transaction) -> tuple[int, list[OutboxRow]]:
        """Delete the next sessions that were asked for and have no running turn. Returns how many were looked at."""
        ids = [each for (each,) in tx.execute(_DUE.format(tx.skip_locked), DELETED_AT_ONCE)]
        found = tx.execute(_LOCK.format(f"session_id IN ({placeholders(1, len(ids))})"), *ids)
        running = {each for each, _ in tx.execute(_RUNNING.format(placeholders(1, len(ids))), *ids)}
        tx.execute_many(
            "UPDATE erasures SET due_at = now_ms() + $1 WHERE session_id = $2",
            [(BUSY_MS, each) for each in sorted(running)],
        )
        gone = set(ids) - {each for each, _, _ in found}  # deleted by somebody else, such as a job of an operator
        tx.execute_many("DELETE FROM erasures WHERE session_id = $1", [(each,) for each in sorted(gone)])
        return len(ids), self._delete(tx, [row for row in found if row[0] not in running])

    def _delete(self, tx: Transaction, sessions: Sequence[Row], key_id: str = "", outcome: str = "") -> list[OutboxRow]:
        """Delete sessions that are locked and have no running turn, and keep the ids of their traces.

        Facts of them that are not published carry the subject and perhaps the text: they are deleted too.
        """
        if not sessions:
            return []
        sessions = sorted(sessions)
        ids, these = [row[0] for row in sessions], placeholders(1, len(sessions))
        turns = _by_session(tx.execute(f"SELECT session_id, turn_id FROM turns WHERE session_id IN ({these})", *ids))
        calls = _by_session(
            tx.execute(
                "SELECT t.session_id, c.correlation_id FROM tool_calls c JOIN turns t USING (turn_id)"
                f" WHERE t.session_id IN ({these})",
                *ids,
            )
        )
        tx.execute(
            f"DELETE FROM outbox WHERE event_type <> ${len(ids) + 1}"
            f" AND turn_id IN (SELECT turn_id FROM turns WHERE session_id IN ({these}))",
            *ids,
            AUDIT_RECORDED,
        )
        asked = f"SELECT session_id FROM erasures WHERE session_id IN ({these}) AND traces IS NULL"
        erased = {each for (each,) in tx.execute(asked, *ids)}
        # Of an erased subject a turn may have ended, and been counted, after the request.
        forget_subjects(tx, (subject for session_id, subject, _ in sessions if session_id in erased))
        tx.execute(f"DELETE FROM sessions WHERE session_id IN ({these})", *ids)
        left: list[tuple[object, ...]] = []
        for session_id, subject, created_at in sessions:
            traces = _Traces(created_at, frozenset(turns[session_id]), frozenset(calls[session_id]))
            left.append((session_id, self._digest(subject), SETTLE_MS, msgspec.json.encode(traces)))
        tx.execute_many(_DELETED, left)
        done = partial(AuditEvent, AuditAction.SESSION_DELETED, key_id=key_id, outcome=outcome)
        return self._audit.add(tx, *(done(subject=subject, session_id=each) for each, subject, _ in sessions))


def _by_session(rows: Iterable[Row]) -> dict[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for session_id, value in rows:
        found[session_id].append(value)
    return found


def _left(tx: Transaction, digest: str) -> Left:
    [(sessions, traces)] = tx.execute(
        "SELECT count(*) - count(traces), count(traces) FROM erasures WHERE subject = $1", digest
    )
    running = tx.execute(
        "SELECT session_id FROM erasures e JOIN turns t USING (session_id)"
        " WHERE e.subject = $1 AND t.status = 'running' ORDER BY session_id",
        digest,
    )
    return Left(sessions, traces, tuple(each for (each,) in running))
