-- What GET /v1/events sends browsers: a change of a session gives it the next revision.
-- An engine of the version before may run on these tables: what it changes gets no revision, and readers do not see it.
ALTER TABLE sessions ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
CREATE INDEX sessions_by_revision ON sessions (revision);
-- Deleted sessions, for a day. Of the subject there is a keyed digest.
CREATE TABLE deleted_sessions (
    session_id TEXT PRIMARY KEY,
    digest     TEXT NOT NULL,
    revision   INTEGER NOT NULL,
    deleted_at INTEGER NOT NULL
) STRICT;
CREATE INDEX deleted_sessions_by_revision ON deleted_sessions (revision);
-- With one writer revisions become visible in their order. `meta` has the last one of a deletion that is not kept any more.
CREATE VIEW next_revision AS SELECT 1 + max(
    coalesce((SELECT max(revision) FROM sessions), 0),
    coalesce((SELECT max(revision) FROM deleted_sessions), 0),
    coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'deletions_kept_after'), 0)
) AS number;
CREATE VIEW settled_revisions AS SELECT number AS before FROM next_revision;
