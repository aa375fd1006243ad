-- Who did what and when, with ids and digests and without texts. Written with what it records; outlives its session.
CREATE TABLE audit (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    at             INTEGER NOT NULL,
    action         TEXT NOT NULL,
    subject        TEXT NOT NULL,
    key_id         TEXT NOT NULL,
    session_id     TEXT NOT NULL,
    turn_id        TEXT NOT NULL,
    correlation_id TEXT NOT NULL,
    server         TEXT NOT NULL,
    tool           TEXT NOT NULL,
    digest         TEXT NOT NULL,
    outcome        TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'events of the audit are never changed'); END;
-- `meta` has the time before which the retention deletes events.
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
WHEN old.at >= coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'audit_kept_since'), 0)
BEGIN SELECT RAISE(ABORT, 'events of the audit are deleted by their retention only'); END;
