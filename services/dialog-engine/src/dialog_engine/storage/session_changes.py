"""Revisions of sessions: the views `next_revision` and `settled_revisions` say how each kind of database gives them."""

from dialog_engine.chat.session_changes import Changed, Changes, SessionChange, SessionChangeStore
from dialog_engine.storage.audit import AuditTrail
from dialog_engine.storage.sessions import SESSION, session_record
from dialog_engine.storage.store import NEXT_REVISION, SealedDatabase, SealedTransaction, StoreTransaction

KEPT_MS = 24 * 3_600_000
"""How long deletions are kept."""
KEPT_AFTER = "deletions_kept_after"
REVISIONS_FROM = "revisions_from"

_SETTLED = "SELECT before - 1 AS revision FROM settled_revisions"
_NEWEST = (
    "SELECT coalesce(max(revision), 0) AS newest, (SELECT number FROM next_revision) AS next,"
    " coalesce((SELECT CAST(value AS bigint) FROM meta WHERE key = $1), 0) AS added FROM"
    " (SELECT max(revision) AS revision FROM sessions UNION ALL SELECT max(revision) FROM deleted_sessions) AS used"
)
_CHANGED = (
    "SELECT revision, subject AS owner FROM sessions WHERE revision > $1"
    " UNION ALL SELECT revision, digest FROM deleted_sessions WHERE revision > $1"
)
_OF = (
    f"{SESSION} WHERE s.subject = $1 AND s.stateless = 0 AND s.revision > $2 AND s.revision <= $3"
    " ORDER BY s.revision LIMIT $4"
)
_DELETED_OF = (
    "SELECT session_id, revision FROM deleted_sessions WHERE digest = $1 AND revision > $2 AND revision <= $3"
    " ORDER BY revision LIMIT $4"
)
_DELETED = (
    "INSERT INTO deleted_sessions (session_id, digest, revision, deleted_at)"
    f" VALUES ($1, $2, {NEXT_REVISION}, now_ms()) ON CONFLICT (session_id) DO NOTHING"
)
_FORGET = "DELETE FROM deleted_sessions WHERE deleted_at < now_ms() - $1 RETURNING revision"
_SET = (
    "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    " WHERE CAST(meta.value AS bigint) < CAST(excluded.value AS bigint)"
)


class SqlSessionChanges(SessionChangeStore):
    """The changes of all subjects. `trail` has the key of digests."""

    def __init__(self, store: SealedDatabase, trail: AuditTrail) -> None:
        self._store = store
        self._trail = trail

    async def settled(self) -> int:
        [row] = await self._store.read(_SETTLED)
        return row.revision

    async def changed(self, after: int) -> Changed:
        settled = await self.settled()  # before the rows: one that is settled meanwhile is taken for unsettled
        rows = await self._store.read(_CHANGED, after)
        owners = frozenset(row.owner for row in rows if row.revision <= settled)
        return Changed(settled, owners, any(row.revision > settled for row in rows))

    async def of(self, subject: str, after: int, limit: int) -> Changes:
        settled = await self.settled()
        [kept] = await self._store.read(
            "SELECT coalesce((SELECT CAST(value AS bigint) FROM meta WHERE key = $1), 0) AS after", KEPT_AFTER
        )
        if not kept.after <= after <= settled:
            return Changes(after, settled, None)
        rows = await self._store.read(_OF, subject, after, settled, limit + 1)
        deleted = await self._store.read(_DELETED_OF, self.digest(subject), after, settled, limit + 1)
        if len(rows) + len(deleted) > limit:
            return Changes(after, settled, None)
        changes = [SessionChange(row.revision, row.session_id, session_record(row)) for row in rows]
        changes += [SessionChange(row.revision, row.session_id, None) for row in deleted]
        return Changes(after, settled, sorted(changes, key=lambda change: change.revision))

    def digest(self, subject: str) -> str:
        return digest_of(self._trail, subject)


def digest_of(trail: AuditTrail, subject: str) -> str:
    """The digest by which a subject is found in rows that must not name it."""
    return trail.digest({"subject": subject})


def keep_deleted(tx: StoreTransaction, sessions: list[tuple[str, str]]) -> None:
    """Keep for a day that these sessions are deleted, each with the digest of its subject; forget older ones.

    It is called before they are deleted: in SQLite the next revision is the one after the highest that is there.
    """
    tx.execute_many(_DELETED, sessions)
    tx.sessions_changed = True
    if forgotten := tx.execute(_FORGET, KEPT_MS):
        tx.execute(_SET, KEPT_AFTER, str(max(row.revision for row in forgotten)))


async def go_on_with_revisions(database: SealedDatabase) -> None:
    """See to it that the next revision is higher than all that are there, also after a database was restored into
    another server, or moved to it."""

    def unit(tx: SealedTransaction) -> None:
        [row] = tx.execute(_NEWEST, REVISIONS_FROM)
        if row.newest >= row.next:
            tx.execute(_SET, REVISIONS_FROM, str(row.added + row.newest + 1 - row.next))

    await database.write(unit)
