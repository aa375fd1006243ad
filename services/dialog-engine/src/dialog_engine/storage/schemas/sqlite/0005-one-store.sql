-- From the releases in which each engine had a file of its own, and shared copies of its sessions through Redis.
CREATE TABLE engines (
    engine_id   TEXT PRIMARY KEY,
    lease_until INTEGER NOT NULL,
    release     TEXT NOT NULL,
    started_at  INTEGER NOT NULL
) STRICT;
CREATE TABLE waiting_turns (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id    TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    engine_id  TEXT NOT NULL -- where its client waits
) STRICT;
CREATE INDEX waiting_turns_by_session ON waiting_turns (session_id, seq);
CREATE INDEX waiting_turns_by_engine ON waiting_turns (engine_id);

ALTER TABLE turns ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE turns ADD COLUMN owned_since INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN crashes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN stop_requested INTEGER NOT NULL DEFAULT 0;
CREATE INDEX running_turns_by_owner ON turns (owner) WHERE status = 'running';
UPDATE turns SET owner = coalesce((SELECT value FROM meta WHERE key = 'engine_id'), '') WHERE owned = 1;
-- Copies of turns that ran on other engines: what became of them was committed there.
UPDATE turns SET status = 'failed', reason = 'error', error_code = 'INTERNAL_ERROR', finished_at = now_ms(),
    error_message = 'another engine ran this turn when this database was taken over: ask again'
    WHERE status = 'running' AND owned = 0;
ALTER TABLE turns DROP COLUMN owned;

ALTER TABLE outbox ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN turn_id TEXT NOT NULL DEFAULT '';
UPDATE outbox SET owner = coalesce((SELECT value FROM meta WHERE key = 'engine_id'), ''),
    turn_id = coalesce((SELECT turn_id FROM tool_calls WHERE correlation_id = event_id),
        (SELECT turn_id FROM turns WHERE turn_id = event_id), '');
DROP INDEX outbox_waiting;
CREATE INDEX outbox_waiting ON outbox (owner, next_at, seq) WHERE published_at IS NULL;
CREATE INDEX outbox_by_turn ON outbox (turn_id);

DROP TABLE journal;
DROP TABLE copies;
