-- Large results of calls that have no outcome yet, as workers have sent them.
-- The last release can run beside this: no worker sends it a large result for a call that it has requested.
CREATE TABLE large_results (
    correlation_id text PRIMARY KEY REFERENCES tool_calls ON DELETE CASCADE,
    fence          bigint NOT NULL, -- of the worker that sent it
    digest         text NOT NULL, -- of the body that it sent
    large_result   bytea NOT NULL,
    sent_at        bigint NOT NULL
);
