-- Beside the messages that clients have named, the requests that they have sent with a key, or may repeat without one.
-- The last release can run beside this: what it notes is kept for a week, as before.
ALTER TABLE client_messages ADD COLUMN kept_ms INTEGER NOT NULL DEFAULT 604800000;
DROP INDEX client_messages_by_age;
CREATE INDEX client_messages_by_end ON client_messages ((created_at + kept_ms));
