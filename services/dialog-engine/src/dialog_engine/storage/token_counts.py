"""The columns of a turn's row that have its usage."""

from dialog_engine.model import Usage
from dialog_engine.storage.database import Row

_COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
COLUMNS = ", ".join((*_COUNTS, "estimated"))
"""What `usage_of` needs of the row of a turn."""
SET = ", ".join(f"{each} = ${each}" for each in (*_COUNTS, "estimated"))
ADD = ", ".join(f"{each} = {each} + ${each}" for each in _COUNTS) + ", estimated = estimated | $estimated"


def usage_of(row: Row) -> Usage:
    """The usage of a turn, from its row."""
    return Usage(
        row.input_tokens,
        row.output_tokens,
        bool(row.estimated),
        row.cached_tokens,
        row.cache_write_tokens,
        row.reasoning_tokens,
    )


def parameters(usage: Usage) -> dict[str, int]:
    """Those of SET and ADD."""
    return {each: getattr(usage, each) for each in _COUNTS} | {"estimated": int(usage.estimated)}
