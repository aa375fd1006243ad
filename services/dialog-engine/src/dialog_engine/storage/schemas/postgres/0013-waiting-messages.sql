-- Messages that wait are rows, which no engine has to keep a connection for.
-- An engine of the version before may run on these tables: it ends turns and does not begin what waits after them, which
-- the other engines find within a second; and it lets a new message begin before those that wait. `waiting_turns`, which
-- it uses, stays empty at the others, and goes later.
-- Messages that wait for the turns before them in their session. A row goes when its turn begins.
CREATE TABLE waiting_messages (
    turn_id      TEXT PRIMARY KEY, -- of the turn that it becomes
    session_id   TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    subject      TEXT NOT NULL,
    place        bigint NOT NULL, -- the order in its session
    waiting_text TEXT NOT NULL,
    chosen_model TEXT NOT NULL,
    tool_mode    TEXT NOT NULL,
    parent_turn_id TEXT, -- the turn that it shall follow, '' for none; NULL for the last one of its session
    traceparent  TEXT,
    roles        TEXT NOT NULL, -- of the sender when it was sent, one in each line
    key_id       TEXT NOT NULL,
    credential   TEXT NOT NULL,
    expires_at   bigint, -- when the sender has to prove again who it is
    created_at   bigint NOT NULL,
    version      bigint NOT NULL DEFAULT 1, -- rises with each change of the text or the sender
    released     bigint NOT NULL DEFAULT 0, -- whether its user has said to send it, whatever becomes of the turn before it
    held         TEXT NOT NULL DEFAULT '', -- why it does not begin until its user says so; empty: it does
    withdrawn_at bigint -- then its text is empty, and the row goes after a week
);
CREATE INDEX waiting_messages_by_session ON waiting_messages (session_id, place) WHERE withdrawn_at IS NULL;
CREATE INDEX waiting_messages_by_subject ON waiting_messages (subject, created_at);
CREATE INDEX withdrawn_messages ON waiting_messages (withdrawn_at) WHERE withdrawn_at IS NOT NULL;
-- The messages that clients have named, for a week: one that is sent again begins no second turn. Keyed digests only.
CREATE TABLE client_messages (
    message_key TEXT PRIMARY KEY, -- of the subject and the client's name for the message
    text_digest TEXT NOT NULL,
    turn_id     TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    created_at  bigint NOT NULL
);
CREATE INDEX client_messages_by_age ON client_messages (created_at);
