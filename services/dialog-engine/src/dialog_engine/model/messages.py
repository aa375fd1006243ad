"""The messages of a conversation, with the calls of the model and the states of these."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from plugins_contract.outcomes import MediaBlock


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
    ANSWERED = "answered"
    """The client that runs the tool has answered the call."""


class QuestionStatus(StrEnum):
    """The state of a question that an MCP server asks."""

    ASKED = "asked"
    ANSWERED = "answered"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    """Dismissed without a choice."""
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    """The turn was stopped or deleted, or the tool or the right to it is gone."""


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """Instructions to the model."""

    content: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A message of the user. `media` are its images, for models that accept them."""

    content: str
    media: tuple[MediaBlock, ...] = ()


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


class MediaOfUser(MediaBlock, frozen=True, kw_only=True):
    """An image that a request has brought for its turn, whose data is to be read from the store likewise."""

    turn_id: str
    number: int
    """Its position among the images of the request."""


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
