-- Large results of calls that have no outcome yet, as workers have sent them.
-- The last release can run beside this: no worker sends it a large result for a call that it has requested.
CREATE TABLE large_results (
    correlation_id TEXT PRIMARY KEY REFERENCES tool_calls ON DELETE CASCADE,
    fence          INTEGER NOT NULL, -- of the worker that sent it
    digest         TEXT NOT NULL, -- of the body that it sent
    large_result   BLOB NOT NULL,
    sent_at        INTEGER NOT NULL
) STRICT;
