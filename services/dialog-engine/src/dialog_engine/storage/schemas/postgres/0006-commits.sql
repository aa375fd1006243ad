-- A row for each connection of an engine: how many transactions it has committed. Read when the answer to a COMMIT is lost.
CREATE TABLE commits (
    slot       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    number     bigint NOT NULL DEFAULT 0,
    created_at bigint NOT NULL
);
