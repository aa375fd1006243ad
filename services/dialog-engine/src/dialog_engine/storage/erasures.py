"""Sessions that are to be erased, until nothing of them is left in the store and in Redis.

A row is committed with the request. It names the session, and has neither text nor subject: of the subject it has a
keyed digest, by which a repeated request finds what is left. `traces` is NULL while the session is in the store, such
as while a turn of it runs. Then it has the ids by which Redis keeps what the session left there.

Rows have no owner: every engine works on those that are due. The table is apart from the outbox because engines of an
earlier release publish whatever they adopt there.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import partial

import msgspec

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.chat.outbox import AUDIT_RECORDED
from dialog_engine.errors import SessionNotFoundError, TurnRunningError
from dialog_engine.personal_data.retention import Idle, OldSessions
from dialog_engine.personal_data.service import ErasedSession, Erasures, ErasureTimes, Left
from dialog_engine.storage.database import Row, placeholders
from dialog_engine.storage.left_branches import FORKED, delete_left
from dialog_engine.storage.session_changes import digest_of, keep_deleted
from dialog_engine.storage.store import Store, StoreTransaction
from dialog_engine.storage.usage import forget_subjects
from dialog_engine.storage.waiting import withdraw_all

DELETED_AT_ONCE = 20
"""How many sessions one transaction deletes."""
BUSY_MS = 2_000
"""When a session with a running turn is looked at again."""
TOGETHER_MS = 60_000
"""How long deletions of one subject that follow each other are waited for, to erase their traces in one pass."""
ERASED_AT_ONCE = 10_000

_LOCK = "UPDATE sessions SET updated_at = updated_at WHERE {} RETURNING session_id, subject, created_at, stateless"
_RUNNING = "SELECT session_id, turn_id FROM turns WHERE session_id IN ({}) AND status = 'running'"
_DUE = "SELECT session_id FROM erasures WHERE traces IS NULL AND due_at <= now_ms() ORDER BY session_id LIMIT $1 {}"
_REQUEST = (
    "INSERT INTO erasures (session_id, subject, requested_at, due_at)"
    " SELECT session_id, $1, now_ms(), now_ms() FROM sessions WHERE subject = $2 ON CONFLICT (session_id) DO NOTHING"
)
_UNPUBLISHED = "DELETE FROM outbox WHERE turn_id IN ({}) AND event_type <> ${}"
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

    def __init__(self, store: Store, times: ErasureTimes = ErasureTimes()) -> None:
        self._store = store
        self._settle_ms = round(times.settle * 1000)
        self._claim_ms = round(times.claim * 1000)

    async def delete(self, subject: str, session_id: str, *, key_id: str = "") -> Left:
        requested_by = self._digest(subject)

        def unit(tx: StoreTransaction) -> Left:
            # The session's lock first, as a turn that begins takes it.
            found = tx.execute(_LOCK.format("session_id = $1 AND subject = $2"), session_id, subject)
            if running := tx.execute(_RUNNING.format("$1"), session_id) if found else []:
                raise TurnRunningError(running[0].turn_id)
            asked = "SELECT 1 FROM erasures WHERE session_id = $1 AND subject = $2"
            if not found and not tx.execute(asked, session_id, requested_by):
                raise SessionNotFoundError(f"there is no session {session_id}")
            _delete(tx, found, self._settle_ms, key_id)
            return _left(tx, requested_by)

        return await self._store.write(unit)

    async def erase(self, subject: str, *, key_id: str = "") -> Left:
        requested_by = self._digest(subject)

        def unit(tx: StoreTransaction) -> Left:
            tx.execute(_REQUEST, requested_by, subject)
            withdraw_all(tx, subject)  # otherwise each would begin, and the session be deleted after the last one
            forget_subjects(tx, [subject])
            left = _left(tx, requested_by)
            outcome = f"{left.sessions} sessions to delete, {len(left.running)} of them running"
            tx.audit(AuditEvent(AuditAction.DATA_ERASED, subject, key_id=key_id, outcome=outcome))
            return left

        return await self._store.write(unit)

    async def due(self) -> Sequence[ErasedSession]:
        if not await self._store.read("SELECT 1 FROM erasures WHERE due_at <= now_ms() LIMIT 1"):
            return []
        while await self._store.write(partial(_delete_due, settle_ms=self._settle_ms)):
            pass

        def unit(tx: StoreTransaction) -> list[Row]:
            return tx.execute(_CLAIM.format(tx.skip_locked), self._claim_ms, TOGETHER_MS, ERASED_AT_ONCE)

        found = [
            (row.session_id, msgspec.json.decode(row.traces, type=_Traces)) for row in await self._store.write(unit)
        ]
        return [ErasedSession(each, traces.since, traces.turns, traces.calls) for each, traces in found]

    async def done(self, session_ids: Collection[str]) -> None:
        def unit(tx: StoreTransaction) -> None:
            tx.execute_many("DELETE FROM erasures WHERE session_id = $1", [(each,) for each in sorted(session_ids)])

        await self._store.write(unit)

    async def page(self, after: str, limit: int) -> Sequence[Idle]:
        rows = await self._store.read(
            "SELECT session_id, subject, now_ms() - updated_at AS idle_ms, stateless FROM sessions"
            " WHERE session_id > $1 ORDER BY session_id LIMIT $2",
            after,
            limit,
        )
        return [Idle(**row.by_name()) for row in rows]

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

        def unit(tx: StoreTransaction) -> int:
            found = tx.execute(_LOCK.format(old), *ids, idle_ms)
            running = {row.session_id for row in tx.execute(_RUNNING.format(these), *ids)}
            over = [row for row in found if row.session_id not in running]
            _delete(tx, over, self._settle_ms, outcome="retention")
            return len(over)

        return await self._store.write(unit)

    async def expire_left(self, idle_ms: int) -> int:
        erased, last = 0, ""
        while page := await self._store.read(FORKED, last, idle_ms, DELETED_AT_ONCE):
            for row in page:
                erased += await self._store.write(partial(self._expire_left, row.session_id, idle_ms))
            last = page[-1].session_id
        return erased

    def _expire_left(self, session_id: str, idle_ms: int, tx: StoreTransaction) -> int:
        erased = 0
        for first, created_at, turns in delete_left(tx, session_id, idle_ms):
            calls = _traces_of(tx, f"turn_id IN ({placeholders(1, len(turns))})", turns)
            traces = _Traces(created_at, frozenset(turns), frozenset(row.id for row in calls))
            tx.execute(_UNPUBLISHED.format(placeholders(1, len(turns)), len(turns) + 1), *turns, AUDIT_RECORDED)
            tx.execute(_DELETED, first, "", self._settle_ms, msgspec.json.encode(traces))
            erased += len(turns)
        return erased

    async def backlog(self) -> tuple[int, int]:
        """How many sessions are still to be erased, and the age of the oldest request in milliseconds."""
        [row] = await self._store.read("SELECT count(*) AS sessions, now_ms() - min(requested_at) AS age FROM erasures")
        return row.sessions, max(0, row.age or 0)

    def _digest(self, subject: str) -> str:
        return digest_of(self._store.trail, subject)


def _delete_due(tx: StoreTransaction, settle_ms: int) -> int:
    """Delete the next sessions that were asked for and have no running turn. Returns how many were looked at."""
    ids = [row.session_id for row in tx.execute(_DUE.format(tx.skip_locked), DELETED_AT_ONCE)]
    found = tx.execute(_LOCK.format(f"session_id IN ({placeholders(1, len(ids))})"), *ids)
    running = {row.session_id for row in tx.execute(_RUNNING.format(placeholders(1, len(ids))), *ids)}
    tx.execute_many(
        "UPDATE erasures SET due_at = now_ms() + $1 WHERE session_id = $2",
        [(BUSY_MS, each) for each in sorted(running)],
    )
    gone = set(ids) - {row.session_id for row in found}  # deleted by somebody else, such as a job of an operator
    tx.execute_many("DELETE FROM erasures WHERE session_id = $1", [(each,) for each in sorted(gone)])
    _delete(tx, [row for row in found if row.session_id not in running], settle_ms)
    return len(ids)


def _delete(tx: StoreTransaction, sessions: Sequence[Row], settle_ms: int, key_id: str = "", outcome: str = "") -> None:
    """Delete sessions that are locked and have no running turn, and keep the ids of their traces, due in `settle_ms`.

    Facts of them that are not published carry the subject and perhaps the text: they are deleted too.
    """
    if not sessions:
        return
    sessions = sorted(sessions)
    ids, these = [row.session_id for row in sessions], placeholders(1, len(sessions))
    turns = _by_session(tx.execute(f"SELECT session_id, turn_id AS id FROM turns WHERE session_id IN ({these})", *ids))
    calls = _by_session(_traces_of(tx, f"t.session_id IN ({these})", ids))
    of_turns = f"SELECT turn_id FROM turns WHERE session_id IN ({these})"
    tx.execute(_UNPUBLISHED.format(of_turns, len(ids) + 1), *ids, AUDIT_RECORDED)
    asked = f"SELECT session_id FROM erasures WHERE session_id IN ({these}) AND traces IS NULL"
    erased = {row.session_id for row in tx.execute(asked, *ids)}
    digests = {row.session_id: digest_of(tx.trail, row.subject) for row in sessions}
    keep_deleted(tx, [(row.session_id, digests[row.session_id]) for row in sessions if not row.stateless])
    tx.execute(f"DELETE FROM sessions WHERE session_id IN ({these})", *ids)
    # Of an erased subject a turn may have ended, and been counted, after the request. The order of locks: see `fence`.
    forget_subjects(tx, (row.subject for row in sessions if row.session_id in erased))
    left: list[tuple[object, ...]] = []
    for row in sessions:
        traces = _Traces(row.created_at, frozenset(turns[row.session_id]), frozenset(calls[row.session_id]))
        left.append((row.session_id, digests[row.session_id], settle_ms, msgspec.json.encode(traces)))
    tx.execute_many(_DELETED, left)
    done = partial(AuditEvent, AuditAction.SESSION_DELETED, key_id=key_id, outcome=outcome)
    tx.audit(*(done(subject=row.subject, session_id=row.session_id) for row in sessions))


def _traces_of(tx: StoreTransaction, where: str, values: Sequence[str]) -> list[Row]:
    """The sessions and ids of the calls of these turns, and of their rounds with answers."""
    return tx.execute(
        "SELECT t.session_id, c.correlation_id AS id FROM tool_calls c JOIN turns t USING (turn_id)"
        f" WHERE {where} UNION ALL SELECT t.session_id,"
        " q.correlation_id || ':' || CAST(q.round_number + 1 AS TEXT) FROM questions q"
        f" JOIN tool_calls c USING (correlation_id) JOIN turns t USING (turn_id) WHERE {where}",
        *values,
    )


def _by_session(rows: Iterable[Row]) -> dict[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for row in rows:
        found[row.session_id].append(row.id)
    return found


def _left(tx: StoreTransaction, digest: str) -> Left:
    [count] = tx.execute(
        "SELECT count(*) - count(traces) AS sessions, count(traces) AS traces FROM erasures WHERE subject = $1", digest
    )
    running = tx.execute(
        "SELECT session_id FROM erasures e JOIN turns t USING (session_id)"
        " WHERE e.subject = $1 AND t.status = 'running' ORDER BY session_id",
        digest,
    )
    return Left(count.sessions, count.traces, tuple(row.session_id for row in running))
