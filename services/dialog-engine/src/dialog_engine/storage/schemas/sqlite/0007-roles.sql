-- The roles of the sender of a turn, one in each line.
ALTER TABLE turns ADD COLUMN roles TEXT NOT NULL DEFAULT '';
