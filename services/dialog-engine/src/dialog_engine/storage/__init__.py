"""One SQLite file: what was said, what is running, and the outbox. Together in one transaction where they belong so."""
