-- What requests bring beside their question, and sessions without a name.
-- The last release can run beside this: it brings nothing, and lists sessions without a name.
ALTER TABLE sessions ADD COLUMN stateless bigint NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN question_digest TEXT;
CREATE INDEX turns_by_question ON turns (question_digest) WHERE question_digest IS NOT NULL;
-- Instructions, how to sample, and what was said before in the words of a client.
CREATE TABLE turn_inputs (
    turn_id    TEXT PRIMARY KEY, -- no reference: its message may wait
    session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    brought    bytea NOT NULL
);
CREATE INDEX turn_inputs_by_session ON turn_inputs (session_id);
CREATE TABLE turn_images (
    turn_id TEXT NOT NULL REFERENCES turn_inputs ON DELETE CASCADE,
    number  integer NOT NULL, -- the position among the images of the request
    image   bytea NOT NULL, -- base64
    PRIMARY KEY (turn_id, number)
);
