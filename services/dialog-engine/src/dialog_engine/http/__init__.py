"""HTTP and SSE: routes turn requests into calls of `chat`, and frames of a turn's log into events."""
