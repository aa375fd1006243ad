"""What the engine talks about: messages, what a model streams, and what a user sees. Closed unions: `match` them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock, ToolOutcome

# --- A conversation, as it is stored and as it is sent to a model ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model asked for.

    `tool_call_id` is the provider's, unique within one assistant message only; `correlation_id` is ours. `arguments`
    is the text the model wrote, whatever it is worth.
    """

    tool_call_id: str
    correlation_id: str
    name: str
    arguments: str
    extra: Mapping[str, Any] | None = None
    """What the provider wants echoed with the call, such as a thought signature."""
    tool: str = ""
    """The tool that is meant, where `name` is the gateway's: what users, workers and analytics are told."""

    @property
    def tool_name(self) -> str:
        """The name of the tool that is meant."""
        return self.tool or self.name


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """Instructions to the model."""

    content: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user wrote."""

    content: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What the model said; with `tool_calls` it waits for their results."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    interrupted: bool = False
    """The user stopped it, or the model went away: `content` is what came before that."""


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one tool call, in the words the model reads.

    `media` are its images and sounds, for models that take them. `content` names each of them as well, so that a
    provider that takes none loses only the sight of it.
    """

    tool_call_id: str
    name: str
    content: str
    media: tuple[MediaBlock, ...] = ()
    failed: bool = False
    """There is no result, and `content` says why: some providers want to be told apart from the text."""
    cut: bool = False
    """Text was left out of `content`, which can be read with a tool."""


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the provider counts them."""

    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was asked for with a user's message; empty: what is configured.

    `model` is the name of a configured model, `provider:model`; `tool_mode` how it is to call tools.
    """

    model: str = ""
    tool_mode: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: a user's message and all that answers it.

    `epoch` counts the lives of the turn: it rises each time a process takes the turn up. `rounds` is how many rounds
    of tool calls its earlier lives have committed, `usage` what the replies of these rounds have cost.
    """

    turn_id: str
    session_id: str
    subject: str
    epoch: int = 1
    rounds: int = 0
    traceparent: str | None = None
    usage: Usage = Usage()
    choice: Choice = Choice()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request to a model. With `tools` empty it can only answer in text.

    `turn` says on whose behalf: tool calls are made in its name. `answer_only` declares the tools and forbids to call
    them: some providers ask for the declaration as soon as the history has calls, and keep their cache by it. The model
    stops before it writes one of `stop`. Of a turn that is just being committed nothing may be written before
    `committed` is set: a database with several connections would take it for a turn that another engine runs.
    """

    messages: tuple[Message, ...]
    turn: Turn
    tools: tuple[ToolEntry, ...] = ()
    answer_only: bool = False
    stop: tuple[str, ...] = ()
    committed: asyncio.Event | None = None


# --- What a model streams -------------------------------------------------------------------------------------------


class FinishReason(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    MAX_ROUNDS = "max_rounds"
    """Only from a client that is enhanced with tools: this is the last answer, made without calls."""
    REPEATED_CALLS = "repeated_calls"
    """The same, because the model would not stop to repeat a call that had the same result every time."""


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
    """One tool call; `arguments` is the text the model wrote, `""` for none at all.

    `problem` says to the model why the call is not to be run as it was written, such as that the reply was cut off
    inside it; it is answered with that. Empty for a call that is complete.
    """

    tool_call_id: str
    name: str
    arguments: str
    extra: Mapping[str, Any] | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Always the last event of a stream that ended well."""

    finish_reason: FinishReason
    usage: Usage = Usage()


LLMEvent = TextDelta | ReasoningDelta | ToolCallEvent | StreamEnd


@dataclass(frozen=True, slots=True)
class AnsweredBy:
    """The model of this name has begun to answer."""

    model: str


@dataclass(frozen=True, slots=True)
class TokensSpent:
    """The model has ended one of the replies of a turn; `usage` is what all of them have cost so far."""

    usage: Usage


# --- What a user sees of a turn -------------------------------------------------------------------------------------


class ToolStatus(StrEnum):
    """The steps of a tool call, as the user is told."""

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
    """How the approval of a tool call stands."""

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
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """Always first."""

    turn_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class MessageFinished:
    """An assistant message is complete and stored; it replaces the pieces since the last one."""

    message_id: int
    message: AssistantMessage


@dataclass(frozen=True, slots=True)
class ToolStep:
    """One step of one tool call. `details` holds what the protocol adds for this status, ready for JSON."""

    status: ToolStatus
    call: ToolCall
    server: str
    round: int
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ApprovalStep:
    """A tool call waits for a person, or has been decided on. `details` as in ToolStep."""

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
    """Replaces every event of the turn that a client has seen by `events`; what comes next follows on those."""

    reason: str
    events: "tuple[TurnEvent, ...]" = ()


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """The turn could not go on. `code` is stable, `message` is for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Done:
    """Always last. `ttft_ms` is the time to the first token, None when no token came; `model` spoke last."""

    turn_id: str
    reason: DoneReason
    usage: Usage
    ttft_ms: int | None
    model: str | None = None


TurnEvent = (
    TurnStarted
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
"""Everything a user is told about a turn."""

ChatEvent = LLMEvent | AnsweredBy | TokensSpent | MessageFinished | ToolStep | ApprovalStep | RoundComplete
"""What a chat stream yields: a plain model the LLM events only, one enhanced with tools the steps of its calls too."""


# --- What becomes of a tool call ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallQueued:
    """The request is on the stream; `position` requests were before it, None when that is not known."""

    correlation_id: str
    position: int | None = None


@dataclass(frozen=True, slots=True)
class CallRunning:
    """A worker has begun; `attempt` counts from 1."""

    correlation_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class CallProgressed:
    """The tool says how far it is."""

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
    """What a tool call waits for that should be there and is not."""

    REDIS = "redis"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class CallHeld:
    """The call goes no further without this; None: nothing is missing any more."""

    correlation_id: str
    waits_for: WaitsFor | None


CallUpdate = CallQueued | CallRunning | CallProgressed | CallHeld | CallAnswered
