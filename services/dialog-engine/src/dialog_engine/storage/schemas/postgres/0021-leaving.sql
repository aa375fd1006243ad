-- How long a turn runs on after its last reader has left.
-- The last release can run beside this: none of its turns is cancelled so, nor any turn while one of its engines lives.
ALTER TABLE turns ADD COLUMN leave_ms bigint;
ALTER TABLE waiting_messages ADD COLUMN leave_ms bigint;
