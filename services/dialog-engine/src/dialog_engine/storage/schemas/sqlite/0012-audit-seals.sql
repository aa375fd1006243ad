-- The audit cannot be changed by REPLACE, and has a hash chain.
DROP TRIGGER audit_is_kept;
CREATE TRIGGER audit_is_never_replaced BEFORE INSERT ON audit
WHEN EXISTS (SELECT 1 FROM audit WHERE seq = new.seq)
BEGIN SELECT RAISE(ABORT, 'events of the audit are never changed'); END;
-- `meta` has the number of the last event that the retention may delete.
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
WHEN old.seq > coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'audit_pruned_to'), 0)
BEGIN SELECT RAISE(ABORT, 'events of the audit are deleted by their retention only'); END;
-- The hash chain of the audit. A seal covers the events after those of the seal before. The first one may be an anchor,
-- whose events the retention has deleted.
CREATE TABLE audit_seals (
    number   INTEGER PRIMARY KEY,
    at       INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    hash     TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_seals_are_never_changed BEFORE UPDATE ON audit_seals
BEGIN SELECT RAISE(ABORT, 'seals of the audit are never changed'); END;
CREATE TRIGGER audit_seals_are_never_replaced BEFORE INSERT ON audit_seals
WHEN EXISTS (SELECT 1 FROM audit_seals WHERE number = new.number)
BEGIN SELECT RAISE(ABORT, 'seals of the audit are never changed'); END;
CREATE TRIGGER audit_seals_are_kept BEFORE DELETE ON audit_seals
WHEN old.last_seq >= coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'audit_pruned_to'), 0)
BEGIN SELECT RAISE(ABORT, 'seals of the audit are deleted by its retention only'); END;
-- For PostgreSQL. With one writer events become visible in the order of their numbers.
CREATE VIEW open_transactions AS SELECT 0 AS oldest;
CREATE VIEW new_transaction AS SELECT 0 AS number;
