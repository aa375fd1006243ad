-- The incarnation of Redis that a tool call was, or may have been, offered to: '' none, NULL any (a row of an earlier release).
ALTER TABLE outbox ADD COLUMN offered_to TEXT;
