-- The turns of a session form a tree, and one path of it is shown.
-- An engine of the version before may run on these tables. A turn that it begins has no parent: it follows the newest
-- turn of the session, whichever path that is on, and is shown as the end of its path. Its model is sent all paths,
-- one after the other.
ALTER TABLE turns ADD COLUMN parent_turn_id TEXT;
ALTER TABLE turns ADD COLUMN path_before INTEGER;
CREATE INDEX turns_by_parent ON turns (session_id, parent_turn_id);
DROP INDEX turns_by_session;
ALTER TABLE sessions ADD COLUMN leaf_turn_id TEXT;
ALTER TABLE sessions ADD COLUMN leaf_moved_after TEXT;
ALTER TABLE tool_calls ADD COLUMN execution_class TEXT NOT NULL DEFAULT '';
