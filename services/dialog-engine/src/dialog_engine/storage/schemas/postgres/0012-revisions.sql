-- What GET /v1/events sends browsers: a change of a session gives it the next revision.
-- An engine of the version before may run on these tables: what it changes gets no revision, and readers do not see it.
ALTER TABLE sessions ADD COLUMN revision bigint NOT NULL DEFAULT 0;
CREATE INDEX sessions_by_revision ON sessions (revision);
-- Deleted sessions, for a day. Of the subject there is a keyed digest.
CREATE TABLE deleted_sessions (
    session_id TEXT PRIMARY KEY,
    digest     TEXT NOT NULL,
    revision   bigint NOT NULL,
    deleted_at bigint NOT NULL
);
CREATE INDEX deleted_sessions_by_revision ON deleted_sessions (revision);
-- A revision is the number of its transaction: numbers of a sequence are given before commits, so a reader that follows
-- them would miss the one that commits late. `meta` has what is added since the database was restored into a server that
-- counts its transactions from a lower number.
CREATE VIEW next_revision AS SELECT
    coalesce((SELECT CAST(value AS bigint) FROM meta WHERE key = 'revisions_from'), 0)
    + pg_current_xact_id()::text::bigint AS number;
CREATE VIEW settled_revisions AS SELECT
    coalesce((SELECT CAST(value AS bigint) FROM meta WHERE key = 'revisions_from'), 0)
    + pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS before;
