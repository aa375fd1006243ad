-- Whether a part of a turn's tokens is an estimate.
ALTER TABLE turns ADD COLUMN estimated bigint NOT NULL DEFAULT 0;
