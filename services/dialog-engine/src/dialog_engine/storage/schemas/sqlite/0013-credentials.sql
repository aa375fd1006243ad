-- The credential of the sender of a turn. A turn of an earlier release has none, and is not ended with it.
ALTER TABLE turns ADD COLUMN credential TEXT NOT NULL DEFAULT '';
