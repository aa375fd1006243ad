-- What was used on each day (UTC), by subject, and by model or tool: added when a turn ends. It outlives its session.
CREATE TABLE usage (
    day           INTEGER NOT NULL, -- since 1970-01-01
    subject       TEXT NOT NULL, -- '' when it was erased
    model         TEXT NOT NULL, -- '' in the row of a tool, or when none has answered
    server        TEXT NOT NULL,
    tool          TEXT NOT NULL,
    shard         INTEGER NOT NULL, -- of the engine: engines do not wait for each other's commits
    turns         INTEGER NOT NULL,
    estimated     INTEGER NOT NULL, -- the turns of which a part of the tokens is an estimate
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    calls         INTEGER NOT NULL,
    PRIMARY KEY (day, subject, model, server, tool, shard)
) STRICT;
CREATE INDEX usage_by_subject ON usage (subject);
-- Whether a worker has run the call, or may have; NULL without an answer, or with one of an earlier release.
ALTER TABLE tool_calls ADD COLUMN ran INTEGER;
