"""The engine's data types: messages, events of a model, events of a turn. Closed unions, for `match`."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any

import msgspec

from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock, ToolOutcome

# --- A conversation, as it is stored and as it is sent to a model ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model asked for.

    `tool_call_id` is the provider's, unique within one assistant message only; `correlation_id` is unique everywhere.
    `arguments` is the text that the model wrote, which need not be JSON.
    """

    tool_call_id: str
    correlation_id: str
    name: str
    arguments: str
    extra: Mapping[str, Any] | None = None
    """Fields that the provider requires to be sent back with the call, such as a thought signature."""
    tool: str = ""
    """The tool to run where `name` is the gateway's. Users, workers and analytics see this name."""

    @property
    def tool_name(self) -> str:
        """The name of the tool to run."""
        return self.tool or self.name


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """Instructions to the model."""

    content: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A message of the user."""

    content: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """A message of the model; with `tool_calls` it needs their results."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    interrupted: bool = False
    """The user stopped it, or the model failed: `content` is the text up to then."""


class MediaInStore(MediaBlock, frozen=True, kw_only=True):
    """An image or a sound of a stored result, whose data is to be read from the store before it can be sent."""

    correlation_id: str
    number: int
    """Its position in the result."""


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one tool call as the model reads it.

    `media` are its images and sounds, for models that accept them. `content` names each of them as well, for models
    that do not.
    """

    tool_call_id: str
    name: str
    content: str
    media: tuple[MediaBlock, ...] = ()
    failed: bool = False
    """The call failed, and `content` says why. Some providers have a field for this."""
    cut: bool = False
    """A part of the text is left out of `content` and can be read with a tool."""
    refusal: str = ""
    """The error of a call that a person refused."""


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as counted by the provider, or in part an estimate."""

    input_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.estimated or other.estimated,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(self.input_tokens - other.input_tokens, self.output_tokens - other.output_tokens, self.estimated)


@dataclass(slots=True)
class Meter:
    """What one reply has cost so far, also when it is stopped: the client and the side band write it."""

    reported: Usage = Usage()
    """What the provider has reported; estimated if pieces of the reply came after that."""
    read: int = 0
    """Bytes of the reply that have arrived: text, reasoning and complete calls."""
    room: float = inf
    """The tokens of the context that the conversation was cut to."""

    @property
    def begun(self) -> bool:
        """Whether anything of the reply has arrived."""
        return self.read > 0 or self.reported != Usage()


@dataclass(frozen=True, slots=True)
class Choice:
    """The choices of a request; empty means the configured default.

    `model` is a configured model, `provider:model`; `tool_mode` is how it calls tools.
    """

    model: str = ""
    tool_mode: str = ""


class ResetReason(StrEnum):
    """Why the events of a turn that a client has received do not simply continue."""

    RESTART = "restart"
    """The engine was restarted."""
    ADOPTION = "adoption"
    """The engine that ran the turn has died or was stopped, and another one has adopted it."""
    RECOVERY = "recovery"
    """The engine runs on, and had not known that it owned the turn: the database's answer to it was lost."""
    LOG_LOST = "log_lost"
    """A part of the turn's log is lost, or is not kept any more."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's message and everything that answers it.

    `epoch` rises each time an engine adopts the turn, and `resumed` is why the last epoch is not the first. `rounds` is
    how many rounds of tool calls were committed in earlier epochs, `calls` how many calls they had, and `usage` is
    their cost. `roles` are those that the sender had when the turn began.
    """

    turn_id: str
    session_id: str
    subject: str
    epoch: int = 1
    rounds: int = 0
    traceparent: str | None = None
    usage: Usage = Usage()
    choice: Choice = Choice()
    roles: tuple[str, ...] = ()
    key_id: str = ""
    """The credential of the request that started it, for the audit. Empty in a turn that was adopted."""
    credential: str = ""
    """The same for `Credentials`; it is kept when the turn is adopted."""
    calls: int = 0
    resumed: ResetReason = ResetReason.RESTART
    model: str = ""
    """The one that wrote the last of these rounds."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request to a model. With `tools` empty it can only answer in text.

    Tool calls are made for `turn`. `answer_only` declares the tools and forbids calling them: some providers require
    the declaration when the history has calls, and need it for their cache. The model stops before it writes one of
    `stop`.
    """

    messages: tuple[Message, ...]
    turn: Turn
    tools: tuple[ToolEntry, ...] = ()
    answer_only: bool = False
    stop: tuple[str, ...] = ()
    left_out: int = 0
    """How many messages of the user and the model are missing, because the conversation is too long."""
    meter: Meter = field(default_factory=Meter, compare=False)


# --- What a model streams -------------------------------------------------------------------------------------------


class FinishReason(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    MAX_ROUNDS = "max_rounds"
    """Only from a client that is enhanced with tools: the limit of rounds was reached, and this answer has no calls."""
    REPEATED_CALLS = "repeated_calls"
    """Likewise, because the model kept repeating a call that had the same result every time."""
    MAX_CALLS = "max_calls"
    """Likewise, because the turn has made as many calls as it may."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """One tool call; `arguments` is the text that the model wrote, `""` for none.

    `problem` is why the call cannot be run as it was written, such as a reply that was cut off inside it; the model
    gets it as the answer. Empty for a complete call.
    """

    tool_call_id: str
    name: str
    arguments: str
    extra: Mapping[str, Any] | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The last event of every stream that is complete."""

    finish_reason: FinishReason
    usage: Usage = Usage()


LLMEvent = TextDelta | ReasoningDelta | ToolCallEvent | StreamEnd


@dataclass(frozen=True, slots=True)
class AnsweredBy:
    """The model with this name has begun to answer, to a request without the `left_out` oldest messages."""

    model: str
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class TokensSpent:
    """A reply of the model is complete; `usage` is the cost of all replies of the turn so far."""

    usage: Usage


# --- What a user sees of a turn -------------------------------------------------------------------------------------


class ToolStatus(StrEnum):
    """The steps of a tool call as users see them."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    PROGRESS = "progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    REFUSED = "refused"

    @property
    def final(self) -> bool:
        """Whether it is the last step of a call."""
        return self not in (ToolStatus.PENDING, ToolStatus.QUEUED, ToolStatus.RUNNING, ToolStatus.PROGRESS)


class ApprovalStatus(StrEnum):
    """The state of an approval."""

    ASKED = "asked"
    APPROVED = "approved"
    EDITED = "edited"
    """Approved with other arguments than the model's."""
    REFUSED = "refused"
    EXPIRED = "expired"


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
    known.
    """

    turn_id: str
    reason: DoneReason
    usage: Usage
    ttft_ms: int | None
    model: str | None = None
    tool_calls: int = 0
    total_ms: int = 0
    by_model: Mapping[str, Usage] = field(default_factory=dict[str, Usage])


TurnEvent = (
    TurnStarted
    | AnsweredBy
    | TextDelta
    | ReasoningDelta
    | MessageFinished
    | ToolStep
    | ApprovalStep
    | RoundComplete
    | Reset
    | TurnFailed
    | Done
)
"""Every event of a turn."""

ChatEvent = LLMEvent | AnsweredBy | TokensSpent | MessageFinished | ToolStep | ApprovalStep | RoundComplete
"""The events of a chat stream. A plain model yields LLM events only, an enhanced one also the steps of its calls."""


# --- Updates on a tool call ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallQueued:
    """The request is on the stream, behind `position` others; None when that is unknown."""

    correlation_id: str
    position: int | None = None


@dataclass(frozen=True, slots=True)
class CallRunning:
    """A worker has begun the call; `attempt` counts from 1."""

    correlation_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class CallProgressed:
    """The tool reports its progress."""

    correlation_id: str
    progress: float
    total: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """The terminal answer."""

    correlation_id: str
    outcome: ToolOutcome


class WaitsFor(StrEnum):
    """What a blocked tool call waits for."""

    REDIS = "redis"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class CallHeld:
    """The call is blocked until this is available; None: it is not blocked any more."""

    correlation_id: str
    waits_for: WaitsFor | None


CallUpdate = CallQueued | CallRunning | CallProgressed | CallHeld | CallAnswered


# --- How long a call took that no worker ran -------------------------------------------------------------------------


def timed(outcome: ToolOutcome, correlation_id: str) -> ToolOutcome:
    """An outcome that no worker measured, with the time from the model's call until now, in milliseconds.

    The id of a call has the time at which it was made, so that an engine that adopts the turn knows it too.
    """
    if outcome.duration_ms or outcome.attempts:
        return outcome
    made_at = uuid.UUID(correlation_id).int >> 80  # `new_id` of the contract
    return msgspec.structs.replace(outcome, duration_ms=max(0, time.time_ns() // 1_000_000 - made_at))


# --- Texts without U+0000, which PostgreSQL cannot store --------------------------------------------------------------

REPLACEMENT = "\ufffd"


def storable(text: str) -> str:
    """The text without U+0000."""
    return text.replace("\0", REPLACEMENT) if "\0" in text else text


def storable_json(text: str) -> str:
    """The JSON text, in which no string has U+0000, as it is or escaped. The text need not be valid JSON."""
    text = storable(text)
    if r"\u0000" not in text:
        return text
    # An escaped backslash is set aside as U+0000, which the text has not: what follows it is no escape.
    return text.replace(r"\\", "\0").replace(r"\u0000", REPLACEMENT).replace("\0", r"\\")
