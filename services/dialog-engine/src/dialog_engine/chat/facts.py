"""Facts that the engine tells the rest of a system, through the outbox."""

import msgspec

from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED

TURN_FINISHED = "TurnFinished"
"""A turn ended: who said what, how it ended, what it cost. For long-term memory."""
TOOL_CALL_FINISHED = "ToolCallFinished"
"""A tool call has its outcome: which tool, how long, how it ended. No arguments and no results. For analytics."""

EVENT_TYPES = frozenset({TOOL_CALL_REQUESTED, TURN_FINISHED, TOOL_CALL_FINISHED})
"""All that the outbox can hold. Each needs a route; without one the engine does not start."""

DEFAULT_ROUTES = {
    TOOL_CALL_REQUESTED: "events.plugins",
    TURN_FINISHED: "events.ltm",
    TOOL_CALL_FINISHED: "events.analytics",
}


class Usage(msgspec.Struct, frozen=True, rename="camel"):
    """Tokens of a whole turn."""

    input_tokens: int
    output_tokens: int


class TurnFinished(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The payload of `TurnFinished`. `at` is Unix milliseconds."""

    event_type: str = TURN_FINISHED
    event_version: int = 1
    turn_id: str
    session_id: str
    subject: str
    reason: str
    usage: Usage
    user_message: str
    assistant_message: str
    at: int


class ToolCallFinished(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The payload of `ToolCallFinished`. `at` is Unix milliseconds."""

    event_type: str = TOOL_CALL_FINISHED
    event_version: int = 1
    correlation_id: str
    turn_id: str
    session_id: str
    subject: str
    tool_name: str
    state: str
    error_code: str | None
    duration_ms: int
    attempts: int
    at: int
