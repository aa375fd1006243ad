-- Images, sounds and files of results, apart from the outcomes that name them.
CREATE TABLE media (
    correlation_id TEXT NOT NULL REFERENCES tool_calls ON DELETE CASCADE,
    number         bigint NOT NULL, -- the position in the outcome's content
    data           bytea NOT NULL, -- base64
    PRIMARY KEY (correlation_id, number)
);
-- The last eight characters, by which models name a result.
CREATE INDEX IF NOT EXISTS tool_calls_by_short_id ON tool_calls (substr(correlation_id, length(correlation_id) - 7));
