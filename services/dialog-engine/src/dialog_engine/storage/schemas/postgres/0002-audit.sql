-- Who did what and when, with ids and digests and without texts. Written with what it records; outlives its session.
CREATE TABLE audit (
    seq            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             bigint NOT NULL,
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
);
-- `meta` has the time before which the retention deletes events.
CREATE FUNCTION audit_guard() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    IF TG_OP = 'DELETE' AND old.at < coalesce((SELECT value::bigint FROM meta WHERE key = 'audit_kept_since'), 0)
    THEN RETURN old; END IF; RAISE EXCEPTION 'events of the audit are never changed, and deleted by their retention only'
    USING ERRCODE = 'integrity_constraint_violation'; END $$;
CREATE TRIGGER audit_is_kept BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_guard();
CREATE TRIGGER audit_is_not_truncated BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_guard();
