-- What clients of OpenAI's Conversations say of a session, and add to it without asking anything.
-- The last release can run beside this: a turn that it begins leaves what was added for the next one.
ALTER TABLE sessions ADD COLUMN metadata TEXT;
ALTER TABLE sessions ADD COLUMN has_additions bigint NOT NULL DEFAULT 0;
CREATE TABLE added_items (
    addition_id TEXT NOT NULL, -- of the request that has added it
    number      integer NOT NULL, -- the position in it
    session_id  TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    place       bigint NOT NULL, -- the order in its session
    turn_id     TEXT, -- the turn that has it before its question; NULL while it waits for one
    standing    bigint NOT NULL, -- whether it is an instruction, which holds for all later turns too
    added_item  bytea, -- NULL once the turn has it, unless it is standing
    PRIMARY KEY (addition_id, number)
);
CREATE INDEX added_items_by_session ON added_items (session_id, place);
CREATE INDEX added_items_in_use ON added_items (session_id, place) WHERE turn_id IS NULL OR standing = 1;
