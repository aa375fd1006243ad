"""What is asked of a person before a tool call runs, and what was decided: stored, shared and shown as it is here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dialog_engine.model import ApprovalStatus, ToolCall
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome


class Question(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What was asked about a call. Times are Unix milliseconds on the clock of Redis.

    `hash` stands for all that a person approves: the arguments, and the tool as it was when the question was put, its
    execution class included.
    """

    server: str
    title: str | None
    policy: ApprovalPolicy
    arguments: dict[str, Any]
    hash: str
    asked_at: int
    expires_at: int


class Decision(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What was decided, by a person or by time. `arguments` are those of the person, when it is `edited`."""

    status: ApprovalStatus
    at: int
    reason: str = ""
    arguments: dict[str, Any] | None = None

    def same_as(self, given: "Given") -> bool:
        """Whether `given` says what was decided."""
        match given:
            case Approve(arguments=None):
                return self.status is ApprovalStatus.APPROVED
            case Approve(arguments=arguments):
                return self.status is ApprovalStatus.EDITED and self.arguments == arguments
            case Refuse(reason=reason):
                return self.status is ApprovalStatus.REFUSED and self.reason == reason


@dataclass(frozen=True, slots=True)
class Asked:
    """A committed call that waits for its approval: it has no request yet, so nobody can run it."""

    call: ToolCall
    question: Question


@dataclass(frozen=True, slots=True)
class Approval:
    """A question, with its decision once there is one."""

    question: Question
    decision: Decision | None = None

    @property
    def edited(self) -> Mapping[str, Any] | None:
        """The arguments that it was run with, where they are not the model's."""
        return self.decision.arguments if self.decision else None


@dataclass(frozen=True, slots=True)
class ApprovalState:
    """What is committed of a call that waits or waited: the question that stands, and what was decided on it. `request`
    runs the call once it is approved, `outcome` is there when it has been answered."""

    correlation_id: str
    question: Question
    decision: Decision | None
    outcome: ToolOutcome | None
    request: ToolCallRequested | None


@dataclass(frozen=True, slots=True)
class Approve:
    """A person approves what `hash` stands for; with `arguments`, those instead of the model's."""

    hash: str
    arguments: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """A person refuses; the model is told the reason."""

    reason: str = ""


Given = Approve | Refuse
