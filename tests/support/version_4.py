"""The schema of the last release in which each engine had a file of its own: what the importer takes over."""

VERSION_4 = """
-- Times are Unix milliseconds. JSON is stored as it travels.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY,
    subject    TEXT NOT NULL,
    title      TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_by_subject ON sessions (subject, updated_at);

CREATE TABLE turns (
    turn_id       TEXT PRIMARY KEY,
    session_id    TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    status        TEXT NOT NULL CHECK (status IN ('running', 'done', 'cancelled', 'failed')),
    epoch         INTEGER NOT NULL DEFAULT 1,
    rounds        INTEGER NOT NULL DEFAULT 0,
    reason        TEXT,
    input_tokens  INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    ttft_ms       INTEGER,
    error_code    TEXT,
    error_message TEXT,
    traceparent   TEXT,
    created_at    INTEGER NOT NULL,
    finished_at   INTEGER,
    owned         INTEGER NOT NULL DEFAULT 1, -- whether this engine ran it last; a copy of another engine's turn: 0
    model         TEXT, -- which model spoke last
    chosen_model  TEXT NOT NULL DEFAULT '', -- what was asked for with the message; empty: nothing
    tool_mode     TEXT NOT NULL DEFAULT ''
) STRICT;
-- One turn at a time per session: held by the database, not by a check before it.
CREATE UNIQUE INDEX one_running_turn ON turns (session_id) WHERE status = 'running';
CREATE INDEX turns_by_session ON turns (session_id);

CREATE TABLE messages (
    message_id  INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id  TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    turn_id     TEXT NOT NULL REFERENCES turns ON DELETE CASCADE,
    role        TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
    content     TEXT NOT NULL,
    reasoning   TEXT NOT NULL DEFAULT '',
    interrupted INTEGER NOT NULL DEFAULT 0,
    created_at  INTEGER NOT NULL,
    number      INTEGER NOT NULL DEFAULT 0 -- its place in the session, the same in every engine's copy
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
    extra          BLOB,
    outcome        BLOB,
    created_at     INTEGER NOT NULL,
    answered_at    INTEGER
) STRICT;
CREATE INDEX tool_calls_by_message ON tool_calls (message_id, ordinal);
CREATE INDEX tool_calls_by_turn ON tool_calls (turn_id);

-- All the text of a result that was too long to be shown. It is not shared: copies of a session hold what is shown.
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

-- A fact's row goes when it is published; a tool call's row stays until the call is answered (invariant I8).
CREATE TABLE outbox (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    event_type   TEXT NOT NULL,
    event_id     TEXT NOT NULL,
    payload      BLOB NOT NULL,
    created_at   INTEGER NOT NULL,
    published_at INTEGER,
    attempts     INTEGER NOT NULL DEFAULT 0,
    next_at      INTEGER NOT NULL DEFAULT 0,
    error        TEXT,
    UNIQUE (event_type, event_id)
) STRICT;
CREATE INDEX outbox_waiting ON outbox (next_at, seq) WHERE published_at IS NULL;

-- What is committed here and not yet shared with the other engines, in order.
CREATE TABLE journal (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL,
    turn_id    TEXT NOT NULL,
    epoch      INTEGER NOT NULL,
    step       TEXT NOT NULL,
    payload    BLOB NOT NULL
) STRICT;
CREATE INDEX journal_by_session ON journal (session_id);

-- Up to which version of the shared copy this file has everything of a session.
CREATE TABLE copies (
    session_id TEXT PRIMARY KEY REFERENCES sessions ON DELETE CASCADE,
    version    INTEGER NOT NULL
) STRICT;
PRAGMA user_version = 4;
"""
