"""The events of a turn. `chat/events.py` says how clients get each of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dialog_engine.model.conversation import Usage
from dialog_engine.model.messages import ApprovalStatus, AssistantMessage, QuestionStatus, ToolCall, ToolStatus
from dialog_engine.model.model_events import AnsweredBy, LLMEvent, ReasoningDelta, TextDelta, TokensSpent


class DoneReason(StrEnum):
    """Why a turn ended."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    MAX_ROUNDS = "max_rounds"
    REPEATED_CALLS = "repeated_calls"
    MAX_CALLS = "max_calls"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """Always first."""

    turn_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class MessageFinished:
    """An assistant message is complete and stored; it replaces the deltas since the previous one."""

    message_id: int
    message: AssistantMessage


@dataclass(frozen=True, slots=True)
class ToolStep:
    """One step of one tool call. `details` are the fields that the protocol adds for this status, JSON-ready."""

    status: ToolStatus
    call: ToolCall
    server: str
    round: int
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ApprovalStep:
    """A tool call waits for approval, or was decided. `details` as in ToolStep."""

    status: ApprovalStatus
    call: ToolCall
    server: str
    round: int
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class QuestionStep:
    """A server asks a person in the middle of a call, or such a question has ended. `details` as in ToolStep."""

    status: QuestionStatus
    call: ToolCall
    server: str
    round: int
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class WaitingForUser:
    """The turn goes on only when its user decides, or its client answers: so many calls wait for approval, the
    questions of servers with these ids for answers, and so many calls of the client's tools for their results; no other
    call is open. `calls` are the correlation ids of all that wait, `hashes` those of the questions for approval by the
    ids of their calls, and `usage` is that of the rounds so far."""

    approvals: int
    questions: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    client_calls: int = 0
    usage: Usage | None = None
    hashes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ResourceUpdated:
    """A resource that the turn has read may have changed since."""

    server: str
    uri: str


@dataclass(frozen=True, slots=True)
class RoundComplete:
    """Every call of the round is answered."""

    round: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Replaces every event of the turn that a client has seen by `events`; what comes next follows on those.

    `reason` is a ResetReason.
    """

    reason: str
    events: "tuple[TurnEvent, ...]" = ()


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """The turn failed. `code` is stable, `message` is for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Done:
    """Always last. `ttft_ms` is the time to the first token, None without one; `model` answered last.

    `tool_calls` counts the calls of the whole turn. `total_ms` is the time since this epoch of the turn began, on the
    same clock as `ttft_ms`; 0 for an end that is read from the store. `by_model` is the part of `usage` whose model is
    known. `left_out` counts the oldest messages of the session that this model was not sent.
    """

    turn_id: str
    reason: DoneReason
    usage: Usage
    ttft_ms: int | None
    model: str | None = None
    tool_calls: int = 0
    total_ms: int = 0
    by_model: Mapping[str, Usage] = field(default_factory=dict[str, Usage])
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The message was withdrawn before its turn began: there is no other event."""

    turn_id: str


TurnEvent = (
    TurnStarted
    | AnsweredBy
    | TextDelta
    | ReasoningDelta
    | MessageFinished
    | ToolStep
    | ApprovalStep
    | QuestionStep
    | WaitingForUser
    | ResourceUpdated
    | RoundComplete
    | Reset
    | TurnFailed
    | Done
    | Withdrawn
)
"""Every event of a turn."""


ChatEvent = (
    LLMEvent
    | AnsweredBy
    | TokensSpent
    | MessageFinished
    | ToolStep
    | ApprovalStep
    | QuestionStep
    | WaitingForUser
    | RoundComplete
)
"""The events of a chat stream. A plain model yields LLM events only, an enhanced one also the steps of its calls."""
