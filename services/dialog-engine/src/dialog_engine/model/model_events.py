"""What a model streams, and what the engine adds to it about the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dialog_engine.model.conversation import Usage


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
    usage: Usage = Usage()  # noqa: RUF009 -- it is frozen


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
