-- What requests bring beside their question, and sessions without a name.
-- The last release can run beside this: it brings nothing, and lists sessions without a name.
ALTER TABLE sessions ADD COLUMN stateless INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN question_digest TEXT;
CREATE INDEX turns_by_question ON turns (question_digest) WHERE question_digest IS NOT NULL;
-- Instructions, how to sample, and what was said before in the words of a client.
CREATE TABLE turn_inputs (
    turn_id    TEXT PRIMARY KEY, -- no reference: its message may wait
    session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    brought    BLOB NOT NULL
) STRICT;
CREATE INDEX turn_inputs_by_session ON turn_inputs (session_id);
CREATE TABLE turn_images (
    turn_id TEXT NOT NULL REFERENCES turn_inputs ON DELETE CASCADE,
    number  INTEGER NOT NULL, -- the position among the images of the request
    image   BLOB NOT NULL, -- base64
    PRIMARY KEY (turn_id, number)
) STRICT;
