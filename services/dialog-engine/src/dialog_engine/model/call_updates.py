"""What becomes known of a tool call while it is open."""

from dataclasses import dataclass
from enum import StrEnum

from plugins_contract.outcomes import ToolOutcome


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
    """What a tool call waits for."""

    REDIS = "redis"
    WORKER = "worker"
    CLIENT = "client"
    """The program that has sent the message: it runs the tool."""


@dataclass(frozen=True, slots=True)
class CallHeld:
    """The call is blocked until this is available; None: it is not blocked any more."""

    correlation_id: str
    waits_for: WaitsFor | None


CallUpdate = CallQueued | CallRunning | CallProgressed | CallHeld | CallAnswered
