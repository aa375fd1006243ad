"""About how many tokens something costs: a quarter of its UTF-8 bytes, which errs on the side of too many. Pure."""

import msgspec

from plugins_contract.catalog import ToolEntry

_PER_TOOL = 8
"""Tokens for the frame that providers put around a tool."""


def tokens_of_text(text: str) -> int:
    """What a text costs."""
    return len(text.encode()) // 4


def tokens_of_tool(tool: ToolEntry) -> int:
    """What offering the tool costs, in every request."""
    return _PER_TOOL + len(msgspec.json.encode([tool.name, tool.description, tool.input_schema])) // 4
