"""The outbox: committed events that are not published yet, and the facts among them. Storage keeps it, the relay
empties it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An event on its way. `attempts` counts failed publications."""

    seq: int
    event_type: str
    event_id: str
    payload: bytes
    attempts: int = 0


OfferRows = Callable[[Sequence[OutboxRow]], None]
"""Told of outbox rows of this engine as soon as they are committed."""


class Outbox(Protocol):
    """The rows that wait."""

    async def waiting(self, limit: int, *, after: int = 0) -> Sequence[OutboxRow]:
        """The oldest rows behind number `after` that are not published, then those put off whose time has come."""
        ...

    async def calls(self, correlation_ids: Sequence[str]) -> Sequence[OutboxRow]:
        """The rows of these tool calls, as far as they are there and not published."""
        ...

    async def unanswered(self) -> Sequence[OutboxRow]:
        """The rows of tool calls that were published and have no answer yet."""
        ...

    async def published(self, rows: Sequence[OutboxRow]) -> None:
        """They are where they belong. A tool call's row stays, marked, until the call is answered."""
        ...

    async def postpone(self, row: OutboxRow, error: str, retry_in_ms: int) -> None:
        """This row could not be published; others are not held up by it."""
        ...


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


class TurnUsage(msgspec.Struct, frozen=True, rename="camel"):
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
    usage: TurnUsage
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
