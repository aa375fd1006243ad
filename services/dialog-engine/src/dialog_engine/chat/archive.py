"""Stored conversations as they are read: records, and the ports by which they are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dialog_engine.model import ToolCall, TurnFailed, Usage
from dialog_engine.tool_calls.approvals.rules import Approval
from dialog_engine.tool_calls.results.shortening import WholeResult
from plugins_contract.outcomes import ToolOutcome


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """A place in the list of sessions: after all that changed later, and after `session_id` of those that changed then.

    `updated_at` is in Unix milliseconds. Without an id it is before all sessions that changed at that time.
    """

    updated_at: int
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One conversation. Times are Unix milliseconds."""

    session_id: str
    title: str
    created_at: int
    updated_at: int
    running_turn_id: str | None
    awaits_approval: bool = False
    """Whether a call of that turn waits for approval."""

    @property
    def place(self) -> SessionPlace:
        """Its place in the list of sessions."""
        return SessionPlace(self.updated_at, self.session_id)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A tool call and its outcome; None while it is open. `approval` is set when it needed one."""

    call: ToolCall
    server: str
    outcome: ToolOutcome | None
    approval: Approval | None = None


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A message of a user or of the assistant, with its tool calls."""

    message_id: int
    turn_id: str
    role: str
    content: str
    interrupted: bool
    created_at: int
    calls: tuple[CallRecord, ...]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn. `status` is running, done, cancelled or failed."""

    turn_id: str
    session_id: str
    status: str
    reason: str | None
    usage: Usage
    ttft_ms: int | None
    failure: TurnFailed | None
    created_at: int
    finished_at: int | None
    model: str | None = None
    tool_calls: int = 0


class Sessions(Protocol):
    """The sessions of a subject. Raises SessionNotFoundError for those of another subject."""

    async def create(self, subject: str) -> str:
        """Create an empty session and return its id."""
        ...

    async def list(self, subject: str, *, limit: int, before: SessionPlace | None) -> list[SessionRecord]:
        """The newest first; with `before`, those that follow on that place."""
        ...

    async def ids(self, subject: str, *, after: str, limit: int) -> Sequence[str]:
        """The ids after `after` in their order, which no use of a session changes."""
        ...


class Archive(Protocol):
    """The messages and turns of a subject. For those of another: SessionNotFoundError, TurnNotFoundError."""

    async def transcript(self, subject: str, session_id: str) -> tuple[SessionRecord, list[MessageRecord]]:
        """The session and its messages, oldest first."""
        ...

    async def turns(self, subject: str, session_id: str) -> list[TurnRecord]:
        """Every turn of the session, oldest first: how each ended, what it cost, why it failed."""
        ...

    async def turn(self, subject: str, turn_id: str) -> TurnRecord:
        """One turn."""
        ...

    async def outcome(self, subject: str, turn_id: str, correlation_id: str) -> ToolOutcome | None:
        """The outcome of one call of the turn; None when there is none (yet)."""
        ...

    async def whole(self, subject: str, turn_id: str, correlation_id: str) -> WholeResult | None:
        """The whole text of that outcome; None when there is no outcome, or its whole text is not stored."""
        ...
