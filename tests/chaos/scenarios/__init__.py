"""One fault per file."""
