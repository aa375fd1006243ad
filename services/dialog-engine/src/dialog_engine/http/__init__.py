"""HTTP and SSE: routes turn requests into calls of `chat`, and frames of a turn's log into events.

The chat page is in `web/`: plain JavaScript without a build step.
"""
