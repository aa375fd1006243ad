"""Tool calls that a model writes as tags in its text. Pure and incremental: no I/O, and no text is read twice."""
