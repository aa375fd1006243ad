-- The rounds with open questions, in the order of their calls: a look at those of parked turns reads no others.
CREATE INDEX open_questions ON questions (correlation_id, expires_at) WHERE settled_at IS NULL;
