-- The audit has a hash chain.
-- `meta` has the number of the last event that the retention may delete. An engine of the last release, which deletes by time,
-- deletes nothing.
CREATE OR REPLACE FUNCTION audit_guard() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    IF TG_OP = 'DELETE' AND old.seq <= coalesce((SELECT value::bigint FROM meta WHERE key = 'audit_pruned_to'), 0)
    THEN RETURN old; END IF; IF TG_OP = 'DELETE' AND old.at < coalesce((SELECT value::bigint FROM meta WHERE key = 'audit_kept_since'), 0)
    THEN RETURN NULL; END IF; RAISE EXCEPTION 'events of the audit are never changed, and deleted by their retention only'
    USING ERRCODE = 'integrity_constraint_violation'; END $$;
-- The hash chain of the audit. A seal covers the events after those of the seal before. The first one may be an anchor,
-- whose events the retention has deleted.
CREATE TABLE audit_seals (
    number   bigint PRIMARY KEY,
    at       bigint NOT NULL,
    last_seq bigint NOT NULL,
    hash     TEXT NOT NULL
);
CREATE FUNCTION audit_seals_guard() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    IF TG_OP = 'DELETE' AND old.last_seq < coalesce((SELECT value::bigint FROM meta WHERE key = 'audit_pruned_to'), 0)
    THEN RETURN old; END IF; RAISE EXCEPTION 'seals of the audit are never changed, and deleted by its retention only'
    USING ERRCODE = 'integrity_constraint_violation'; END $$;
CREATE TRIGGER audit_seals_are_kept BEFORE UPDATE OR DELETE ON audit_seals FOR EACH ROW EXECUTE FUNCTION audit_seals_guard();
CREATE TRIGGER audit_seals_are_not_truncated BEFORE TRUNCATE ON audit_seals FOR EACH STATEMENT EXECUTE FUNCTION audit_seals_guard();
-- The oldest transaction that is open, and a new one: the end of a snapshot is not after all that are open.
CREATE VIEW open_transactions AS SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest;
CREATE VIEW new_transaction AS SELECT pg_current_xact_id()::text::bigint AS number;
