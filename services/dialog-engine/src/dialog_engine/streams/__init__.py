"""All that the engine does in Redis: publish the outbox, wait for replies, keep the turn logs, read the catalog."""
