-- Version 22. Times are Unix milliseconds on the clock of the database. JSON is stored as it travels.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

-- The engines that share this database. An engine renews its lease while it lives; 0: it went down in good order.
CREATE TABLE engines (
    engine_id   TEXT PRIMARY KEY,
    lease_until INTEGER NOT NULL,
    release     TEXT NOT NULL,
    started_at  INTEGER NOT NULL
) STRICT;

CREATE TABLE sessions (
    session_id       TEXT PRIMARY KEY,
    subject          TEXT NOT NULL,
    title            TEXT NOT NULL DEFAULT '',
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    revision         INTEGER NOT NULL DEFAULT 0, -- of its last change: see next_revision
    leaf_turn_id     TEXT, -- the end of the path that is shown; NULL: the newest turn
    leaf_moved_after TEXT, -- the newest turn when it was set: one that begins later is the end
    chosen_tools     TEXT NOT NULL DEFAULT '', -- what its messages may use that choose no tools themselves; empty: all
    stateless        INTEGER NOT NULL DEFAULT 0, -- whether it began without a name: it is not listed
    metadata         TEXT, -- JSON that clients of OpenAI's Conversations say of it; NULL: nothing
    has_additions    INTEGER NOT NULL DEFAULT 0 -- whether it has or had rows of added_items
) STRICT;
CREATE INDEX sessions_by_subject ON sessions (subject, updated_at);
CREATE INDEX sessions_by_revision ON sessions (revision);

CREATE TABLE turns (
    turn_id        TEXT PRIMARY KEY,
    session_id     TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    status         TEXT NOT NULL CHECK (status IN ('running', 'done', 'cancelled', 'failed')),
    owner          TEXT NOT NULL DEFAULT '', -- the engine that runs it, or ran it last; '' while it is parked
    epoch          INTEGER NOT NULL DEFAULT 1, -- rises with each change of owner and each restart: the fence
    owned_since    INTEGER NOT NULL DEFAULT 0,
    crashes        INTEGER NOT NULL DEFAULT 0, -- how often in a row its owner died before the turn came any further
    stop_requested INTEGER NOT NULL DEFAULT 0,
    rounds         INTEGER NOT NULL DEFAULT 0,
    reason         TEXT,
    input_tokens   INTEGER NOT NULL DEFAULT 0,
    output_tokens  INTEGER NOT NULL DEFAULT 0,
    estimated      INTEGER NOT NULL DEFAULT 0, -- whether a part of these tokens is an estimate
    ttft_ms        INTEGER,
    error_code     TEXT,
    error_message  TEXT,
    traceparent    TEXT,
    model          TEXT, -- which model spoke last
    chosen_model   TEXT NOT NULL DEFAULT '', -- what was asked for with the message; empty: nothing
    tool_mode      TEXT NOT NULL DEFAULT '',
    chosen_tools   TEXT NOT NULL DEFAULT '', -- which tools it may use; empty: all of its sender's
    roles          TEXT NOT NULL DEFAULT '', -- of the sender, one in each line
    credential     TEXT NOT NULL DEFAULT '', -- of the sender; empty: it cannot be revoked
    left_out       INTEGER NOT NULL DEFAULT 0, -- how many of the oldest messages its model was not sent
    created_at     INTEGER NOT NULL,
    finished_at    INTEGER,
    parent_turn_id TEXT, -- the turn that it follows; '' when there is none; NULL: the turn before it in the session
    path_before    INTEGER, -- the messages before it on its path; NULL: all those before it in the session
    parked_until   INTEGER, -- on the clock of Redis: when the first question of a parked turn expires
    leave_ms       INTEGER, -- how long it runs on after its last reader has left; NULL: to its end; below 0 once it was parked
    question_digest TEXT, -- keyed, of the question as it is compared
    cached_tokens INTEGER NOT NULL DEFAULT 0, -- of input_tokens, those that were read from the cache of the provider
    cache_write_tokens INTEGER NOT NULL DEFAULT 0, -- those that were written to it
    reasoning_tokens INTEGER NOT NULL DEFAULT 0 -- of output_tokens
) STRICT;
-- One turn at a time per session: held by the database, not by a check before it.
CREATE UNIQUE INDEX one_running_turn ON turns (session_id) WHERE status = 'running';
CREATE INDEX turns_by_parent ON turns (session_id, parent_turn_id);
CREATE INDEX running_turns_by_owner ON turns (owner) WHERE status = 'running';
CREATE INDEX parked_turns ON turns (parked_until) WHERE status = 'running' AND owner = '';
CREATE INDEX turns_by_question ON turns (question_digest) WHERE question_digest IS NOT NULL;
CREATE INDEX parked_turns_by_credential ON turns (credential) WHERE status = 'running' AND owner = '';

-- What requests bring beside their question: instructions, how to sample, and what was said before in the words of a
-- client; and images.
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

-- What clients add to a session without asking anything. It comes before the next question.
CREATE TABLE added_items (
    addition_id TEXT NOT NULL, -- of the request that has added it
    number      INTEGER NOT NULL, -- the position in it
    session_id  TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    place       INTEGER NOT NULL, -- the order in its session
    turn_id     TEXT, -- the turn that has it before its question; NULL while it waits for one
    standing    INTEGER NOT NULL, -- whether it is an instruction, which holds for all later turns too
    added_item  BLOB, -- NULL once the turn has it, unless it is standing
    PRIMARY KEY (addition_id, number)
) STRICT;
CREATE INDEX added_items_by_session ON added_items (session_id, place);
CREATE INDEX added_items_in_use ON added_items (session_id, place) WHERE turn_id IS NULL OR standing = 1;

-- Of the version before: empty, unless one of its engines runs beside this release.
CREATE TABLE waiting_turns (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id    TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    engine_id  TEXT NOT NULL -- where its client waits
) STRICT;
CREATE INDEX waiting_turns_by_session ON waiting_turns (session_id, seq);
CREATE INDEX waiting_turns_by_engine ON waiting_turns (engine_id);

-- Messages that wait for the turns before them in their session. A row goes when its turn begins.
CREATE TABLE waiting_messages (
    turn_id      TEXT PRIMARY KEY, -- of the turn that it becomes
    session_id   TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    subject      TEXT NOT NULL,
    place        INTEGER NOT NULL, -- the order in its session
    waiting_text TEXT NOT NULL,
    chosen_model TEXT NOT NULL,
    tool_mode    TEXT NOT NULL,
    chosen_tools TEXT NOT NULL DEFAULT '',
    parent_turn_id TEXT, -- the turn that it shall follow, '' for none; NULL for the last one of its session
    traceparent  TEXT,
    roles        TEXT NOT NULL, -- of the sender when it was sent, one in each line
    key_id       TEXT NOT NULL,
    credential   TEXT NOT NULL,
    expires_at   INTEGER, -- when the sender has to prove again who it is
    created_at   INTEGER NOT NULL,
    version      INTEGER NOT NULL DEFAULT 1, -- rises with each change of the text or the sender
    released     INTEGER NOT NULL DEFAULT 0, -- whether its user has said to send it, whatever becomes of the turn before it
    held         TEXT NOT NULL DEFAULT '', -- why it does not begin until its user says so; empty: it does
    withdrawn_at INTEGER, -- then its text is empty, and the row goes after a week
    leave_ms     INTEGER -- of the turn that it becomes
) STRICT;
CREATE INDEX waiting_messages_by_session ON waiting_messages (session_id, place) WHERE withdrawn_at IS NULL;
CREATE INDEX waiting_messages_by_subject ON waiting_messages (subject, created_at);
CREATE INDEX withdrawn_messages ON waiting_messages (withdrawn_at) WHERE withdrawn_at IS NOT NULL;
-- What clients have sent: one that is sent again begins no second turn. Keyed digests only.
CREATE TABLE client_messages (
    message_key TEXT PRIMARY KEY, -- of the subject and the client's name for the message, its key, or the whole request
    text_digest TEXT NOT NULL, -- of what that stands for
    turn_id     TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    kept_ms     INTEGER NOT NULL DEFAULT 604800000 -- a week, as of the release before
) STRICT;
CREATE INDEX client_messages_by_end ON client_messages ((created_at + kept_ms));

-- The names that clients of other protocols have given to sessions. Keyed digests only.
CREATE TABLE session_names (
    name_key   TEXT PRIMARY KEY, -- of the subject, the protocol and the name
    session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE
) STRICT;
CREATE INDEX session_names_by_session ON session_names (session_id);

CREATE TABLE messages (
    message_id  INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id  TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    turn_id     TEXT NOT NULL REFERENCES turns ON DELETE CASCADE,
    number      INTEGER NOT NULL DEFAULT 0, -- its place in the session
    role        TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
    content     TEXT NOT NULL,
    reasoning   TEXT NOT NULL DEFAULT '',
    interrupted INTEGER NOT NULL DEFAULT 0,
    created_at  INTEGER NOT NULL
) STRICT;
CREATE INDEX messages_in_order ON messages (session_id, number);
CREATE UNIQUE INDEX messages_of_turn ON messages (turn_id, number);

CREATE TABLE tool_calls (
    correlation_id TEXT PRIMARY KEY,
    message_id     INTEGER NOT NULL REFERENCES messages ON DELETE CASCADE,
    turn_id        TEXT NOT NULL REFERENCES turns ON DELETE CASCADE,
    ordinal        INTEGER NOT NULL,
    tool_call_id   TEXT NOT NULL,
    name           TEXT NOT NULL,
    server         TEXT NOT NULL,
    arguments      TEXT NOT NULL,
    tool           TEXT NOT NULL DEFAULT '', -- the one that is meant, where the name is the gateway's
    tool_title     TEXT NOT NULL DEFAULT '', -- what its server called it
    extra          BLOB,
    outcome        BLOB,
    created_at     INTEGER NOT NULL,
    answered_at    INTEGER,
    ran            INTEGER, -- whether a worker has run it, or may have; NULL: not known
    execution_class TEXT NOT NULL DEFAULT '', -- of its request; '' while there is none, or not known
    asked          INTEGER NOT NULL DEFAULT 0 -- how many of its rounds its server has ended with questions
) STRICT;
CREATE INDEX tool_calls_by_message ON tool_calls (message_id, ordinal);
CREATE INDEX tool_calls_by_turn ON tool_calls (turn_id);
-- The last eight characters, by which models name a result.
CREATE INDEX tool_calls_by_short_id ON tool_calls (substr(correlation_id, length(correlation_id) - 7));

-- Images, sounds and files of results, apart from the outcomes that name them.
CREATE TABLE media (
    correlation_id TEXT NOT NULL REFERENCES tool_calls ON DELETE CASCADE,
    number         INTEGER NOT NULL, -- the position in the outcome's content
    data           BLOB NOT NULL, -- base64
    PRIMARY KEY (correlation_id, number)
) STRICT;

-- Large results of calls that have no outcome yet, as workers have sent them.
CREATE TABLE large_results (
    correlation_id TEXT PRIMARY KEY REFERENCES tool_calls ON DELETE CASCADE,
    fence          INTEGER NOT NULL, -- of the worker that sent it
    digest         TEXT NOT NULL, -- of the body that it sent
    large_result   BLOB NOT NULL,
    sent_at        INTEGER NOT NULL
) STRICT;

-- All the text of a result that was too long to be shown.
CREATE TABLE whole_results (
    correlation_id TEXT PRIMARY KEY REFERENCES tool_calls ON DELETE CASCADE,
    whole          BLOB NOT NULL
) STRICT;

-- What a person is or was asked before a call is run, and what was decided. An undecided call has no row in the outbox.
CREATE TABLE approvals (
    correlation_id TEXT PRIMARY KEY REFERENCES tool_calls ON DELETE CASCADE,
    question       BLOB NOT NULL,
    decision       BLOB
) STRICT;

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
CREATE INDEX open_questions ON questions (correlation_id, expires_at) WHERE settled_at IS NULL;
-- The owner relays a row. A fact's row goes when it is published; a tool call's row stays until the call is answered
-- (invariant I8).
CREATE TABLE outbox (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    owner        TEXT NOT NULL DEFAULT '',
    turn_id      TEXT NOT NULL DEFAULT '', -- no reference; the rows of an erased session are deleted with it, but those of the audit
    event_type   TEXT NOT NULL,
    event_id     TEXT NOT NULL,
    payload      BLOB NOT NULL,
    created_at   INTEGER NOT NULL,
    published_at INTEGER,
    attempts     INTEGER NOT NULL DEFAULT 0,
    next_at      INTEGER NOT NULL DEFAULT 0,
    error        TEXT,
    offered_to   TEXT, -- the incarnation of Redis that a tool call may have been offered to: '' none, NULL any
    UNIQUE (event_type, event_id)
) STRICT;
CREATE INDEX outbox_waiting ON outbox (owner, next_at, seq) WHERE published_at IS NULL;
CREATE INDEX outbox_by_turn ON outbox (turn_id);

-- Sessions that are to be erased, until nothing of them is left in the store and in Redis.
CREATE TABLE erasures (
    session_id   TEXT PRIMARY KEY, -- no reference: it outlives its session
    subject      TEXT NOT NULL, -- a digest with the key of the audit
    requested_at INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    traces       BLOB -- the ids by which Redis keeps what it left; NULL while the session is in the store
) STRICT;
CREATE INDEX erasures_by_subject ON erasures (subject, due_at);
CREATE INDEX erasures_by_time ON erasures (due_at);

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

-- Who did what and when, with ids and digests and without texts. Written with what it records; outlives its session.
CREATE TABLE audit (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    at             INTEGER NOT NULL,
    action         TEXT NOT NULL,
    subject        TEXT NOT NULL,
    key_id         TEXT NOT NULL,
    session_id     TEXT NOT NULL,
    turn_id        TEXT NOT NULL,
    correlation_id TEXT NOT NULL,
    server         TEXT NOT NULL,
    tool           TEXT NOT NULL,
    digest         TEXT NOT NULL,
    outcome        TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'events of the audit are never changed'); END;
CREATE TRIGGER audit_is_never_replaced BEFORE INSERT ON audit
WHEN EXISTS (SELECT 1 FROM audit WHERE seq = new.seq)
BEGIN SELECT RAISE(ABORT, 'events of the audit are never changed'); END;
-- `meta` has the number of the last event that the retention may delete.
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
WHEN old.seq > coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'audit_pruned_to'), 0)
BEGIN SELECT RAISE(ABORT, 'events of the audit are deleted by their retention only'); END;

-- The hash chain of the audit. A seal covers the events after those of the seal before. The first one may be an anchor,
-- whose events the retention has deleted.
CREATE TABLE audit_seals (
    number   INTEGER PRIMARY KEY,
    at       INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    hash     TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_seals_are_never_changed BEFORE UPDATE ON audit_seals
BEGIN SELECT RAISE(ABORT, 'seals of the audit are never changed'); END;
CREATE TRIGGER audit_seals_are_never_replaced BEFORE INSERT ON audit_seals
WHEN EXISTS (SELECT 1 FROM audit_seals WHERE number = new.number)
BEGIN SELECT RAISE(ABORT, 'seals of the audit are never changed'); END;
CREATE TRIGGER audit_seals_are_kept BEFORE DELETE ON audit_seals
WHEN old.last_seq >= coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'audit_pruned_to'), 0)
BEGIN SELECT RAISE(ABORT, 'seals of the audit are deleted by its retention only'); END;
-- For PostgreSQL. With one writer events become visible in the order of their numbers.
CREATE VIEW open_transactions AS SELECT 0 AS oldest;
CREATE VIEW new_transaction AS SELECT 0 AS number;

-- Deleted sessions, for a day. Of the subject there is a keyed digest.
CREATE TABLE deleted_sessions (
    session_id TEXT PRIMARY KEY,
    digest     TEXT NOT NULL,
    revision   INTEGER NOT NULL,
    deleted_at INTEGER NOT NULL
) STRICT;
CREATE INDEX deleted_sessions_by_revision ON deleted_sessions (revision);
-- With one writer revisions become visible in their order. `meta` has the last one of a deletion that is not kept any more.
CREATE VIEW next_revision AS SELECT 1 + max(
    coalesce((SELECT max(revision) FROM sessions), 0),
    coalesce((SELECT max(revision) FROM deleted_sessions), 0),
    coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'deletions_kept_after'), 0)
) AS number;
CREATE VIEW settled_revisions AS SELECT number AS before FROM next_revision;
