"""What a tool returned, in the form that the model, the browser and the ledger keep. Pure."""

from mcp.types import CallToolResult
from plugins_contract.outcomes import ToolOutcome

MAX_TEXT_BYTES = 64 * 1024
"""All text of one outcome together, in UTF-8 bytes."""
MAX_MEDIA_BYTES = 4 * 1024 * 1024
"""All images and sounds of one outcome together, decoded."""


def to_outcome(
    result: CallToolResult, *, max_bytes: int = MAX_TEXT_BYTES, duration_ms: int = 0, attempts: int = 0
) -> ToolOutcome:
    """The terminal outcome for an answer: `succeeded`, or `failed` with the tool's own words when it says so."""
    raise NotImplementedError
