"""The outbox: committed events that are not published yet, and the facts among them. Storage keeps it, the relay
empties it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import ToolCallRequested


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An event that is not published yet. `attempts` counts failed publications.

    `offered_to` is the incarnation of Redis that a tool call may have been offered to: NEVER_OFFERED for none, None for
    any, because a release that does not note it wrote the row. `sent` is False for a row that was just committed.
    """

    seq: int
    event_type: str
    event_id: str
    payload: bytes
    attempts: int = 0
    offered_to: str | None = None
    sent: bool = True


class OutboxRelay(Protocol):
    """Publishes the rows of this engine."""

    def offers_to(self, requests: Sequence[ToolCallRequested]) -> Sequence[str]:
        """The incarnation of Redis that each of these calls, all of one subject, is offered to when they are committed
        now; NEVER_OFFERED for those that are not offered at once."""
        ...

    def offer(self, rows: Sequence[OutboxRow]) -> None:
        """Take rows of this engine as soon as they are committed. Must not block."""
        ...


class Outbox(Protocol):
    """The rows that wait."""

    async def waiting(self, limit: int, *, after: int = 0) -> Sequence[OutboxRow]:
        """The oldest unpublished rows with a higher number than `after`, then postponed rows that are due."""
        ...

    async def calls(self, correlation_ids: Sequence[str]) -> Sequence[OutboxRow]:
        """The unpublished rows among those of these tool calls."""
        ...

    async def unanswered(self) -> Sequence[OutboxRow]:
        """The rows of tool calls that were published and have no answer yet."""
        ...

    async def published(self, rows: Sequence[OutboxRow]) -> None:
        """Mark rows as published. The row of a tool call stays until the call is answered, others are deleted."""
        ...

    async def stamp(self, rows: Sequence[OutboxRow], incarnation: str) -> frozenset[int]:
        """Note that these rows are about to be offered to this incarnation of Redis.

        Returns the numbers of those that this engine still owns. The others must not be published.
        """
        ...

    async def postpone(self, row: OutboxRow, error: str, retry_in_ms: int) -> None:
        """Retry a row that could not be published after `retry_in_ms` milliseconds."""
        ...


TURN_FINISHED = "TurnFinished"
"""A turn ended: its ids, its reason, its cost, and its messages where they are asked for. For long-term memory."""
TOOL_CALL_FINISHED = "ToolCallFinished"
"""A tool call has its outcome: tool, duration, state; no arguments and no results. For analytics."""

AUDIT_RECORDED = "AuditRecorded"
"""An event of the audit. Published with AUDIT_STREAM only."""

EVENT_TYPES = frozenset({TOOL_CALL_REQUESTED, TURN_FINISHED, TOOL_CALL_FINISHED, AUDIT_RECORDED})
"""Every type of event in the outbox. The engine does not start when one has no route."""

DEFAULT_ROUTES = {
    TOOL_CALL_REQUESTED: "events.plugins",
    TURN_FINISHED: "events.ltm",
    TOOL_CALL_FINISHED: "events.analytics",
    AUDIT_RECORDED: "events.audit",
}


class TurnUsage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Tokens of a whole turn; `estimated` if the provider has not reported all of them."""

    input_tokens: int
    output_tokens: int
    estimated: bool = False


class TurnFinished(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The payload of `TurnFinished`. `at` is Unix milliseconds. The texts are left out unless they are asked for."""

    event_type: str = TURN_FINISHED
    event_version: int = 1
    turn_id: str
    session_id: str
    subject: str
    reason: str
    usage: TurnUsage
    user_message: str | None = None
    assistant_message: str | None = None
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
