-- Sessions that are to be erased, until nothing of them is left in the store and in Redis.
CREATE TABLE erasures (
    session_id   TEXT PRIMARY KEY, -- no reference: it outlives its session
    subject      TEXT NOT NULL, -- a digest with the key of the audit
    requested_at bigint NOT NULL,
    due_at       bigint NOT NULL,
    traces       bytea -- the ids by which Redis keeps what it left; NULL while the session is in the store
);
CREATE INDEX erasures_by_subject ON erasures (subject, due_at);
CREATE INDEX erasures_by_time ON erasures (due_at);
