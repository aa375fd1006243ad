-- The names that clients of other protocols have given to sessions. Keyed digests only.
CREATE TABLE session_names (
    name_key   TEXT PRIMARY KEY, -- of the subject, the protocol and the name
    session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE
);
CREATE INDEX session_names_by_session ON session_names (session_id);
