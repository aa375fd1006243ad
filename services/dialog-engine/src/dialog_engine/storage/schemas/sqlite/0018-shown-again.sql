-- What pages show again: what a server called the tool of a call, and how many messages the model of a turn was not sent.
-- The last release can run beside this: it writes neither.
ALTER TABLE tool_calls ADD COLUMN tool_title TEXT NOT NULL DEFAULT '';
ALTER TABLE turns ADD COLUMN left_out INTEGER NOT NULL DEFAULT 0;
