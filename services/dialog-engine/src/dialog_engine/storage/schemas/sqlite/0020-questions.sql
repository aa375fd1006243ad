-- Questions of MCP servers.
-- The last release can run beside this: nothing is asked while it does.
ALTER TABLE tool_calls ADD COLUMN asked INTEGER NOT NULL DEFAULT 0;
-- What MCP servers asked in the middle of calls, a row for each round that ended so, and what was answered. While a question
-- is open, its call has no row in the outbox.
CREATE TABLE questions (
    correlation_id TEXT NOT NULL REFERENCES tool_calls ON DELETE CASCADE,
    round_number   INTEGER NOT NULL,
    asking         BLOB NOT NULL,
    given          BLOB,
    expires_at     INTEGER NOT NULL,
    settled_at     INTEGER, -- NULL while a question of the round is open
    PRIMARY KEY (correlation_id, round_number)
) STRICT;
