"""What the parts of this package say to each other about a call: its plan, its question and decision, its result."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dialog_engine.model import ApprovalStatus, ToolCall, Turn
from plugins_contract.catalog import ApprovalPolicy, ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallState, ToolOutcome

# --- Plans ---


@dataclass(frozen=True, slots=True)
class Runnable:
    """A call that fits its tool and can be requested."""

    call: ToolCall
    tool: ToolEntry
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unrunnable:
    """A call that already has its outcome. `tool` is its tool where that is known; only the engine's own were run."""

    call: ToolCall
    outcome: ToolOutcome
    tool: ToolEntry | None = None


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that is committed with its request, and has no outcome yet."""

    call: ToolCall
    request: ToolCallRequested


# --- Questions and decisions ---

CLIENT_CLASS = "client"
"""In the place of the execution class of a call that its client runs."""


class Question(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The question that is put to a person about a call, or with `by_client` to the client that runs its tool, whose
    answer is the result of the call. Times are Unix milliseconds on the clock of Redis.

    `hash` identifies what the person approves: the arguments, and the tool as the catalog described it at `asked_at`.
    `tool` is the name of the tool at its server; empty in a question of an earlier release.
    """

    server: str
    tool: str = ""
    title: str | None
    policy: ApprovalPolicy
    arguments: dict[str, Any]
    hash: str
    asked_at: int
    expires_at: int
    by_client: bool = False


class Decision(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A decision by a person or a client, or by the timeout. `arguments` are set when the person edited them.

    `key_id` names the credential that was used, for the audit. `digest` is that of the result that a client gave.
    """

    status: ApprovalStatus
    at: int
    reason: str = ""
    arguments: dict[str, Any] | None = None
    key_id: str = ""
    digest: str = ""

    def same_as(self, given: "Given") -> bool:
        """Whether a person who sends `given` wants what was decided."""
        match given:
            case Approve(arguments=None):
                return self.status is ApprovalStatus.APPROVED
            case Approve(arguments=arguments):
                return self.status is ApprovalStatus.EDITED and self.arguments == arguments
            case Refuse(reason=reason):
                return self.status is ApprovalStatus.REFUSED and self.reason == reason


@dataclass(frozen=True, slots=True)
class Asked:
    """A committed call that waits for its approval, or for its result from the client. It has no request, so that no
    worker can run it."""

    call: ToolCall
    question: Question


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """Such a call, and where it was made."""

    session_id: str
    turn_id: str
    asked: Asked


@dataclass(frozen=True, slots=True)
class Approval:
    """A question with its decision, if there is one yet."""

    question: Question
    decision: Decision | None = None

    @property
    def edited(self) -> Mapping[str, Any] | None:
        """The arguments that the call was run with, if the person changed them."""
        return self.decision.arguments if self.decision else None


@dataclass(frozen=True, slots=True)
class ApprovalState:
    """What is committed of such a call.

    `question` is the current one. `request` is set when the call is approved, `outcome` when it has its outcome.
    """

    correlation_id: str
    question: Question
    decision: Decision | None
    outcome: ToolOutcome | None
    request: ToolCallRequested | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A decision that is committed. `taken` is its turn, if that was parked: it is this engine's now, and goes on."""

    taken: Turn | None = None


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """The `Idempotency-Key` of a subject's request that answers calls. It stands for `content`, a digest of that."""

    subject: str
    key: str
    content: str


@dataclass(frozen=True, slots=True)
class Approve:
    """A person approves the question with this hash, with `arguments` in place of the model's if they are set."""

    hash: str
    arguments: dict[str, Any] | None = None
    key_id: str = ""
    answer_key: AnswerKey | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """A person refuses. The model reads the reason."""

    reason: str = ""
    key_id: str = ""
    answer_key: AnswerKey | None = None


Given = Approve | Refuse


def outcome_of_refusal(reason: str) -> ToolOutcome:
    """The outcome of a call that a person refused, for this reason or for none."""
    because = f", for this reason: {reason}" if reason else ""
    return ToolOutcome.failure(CallState.FAILED, ErrorCode.NOT_APPROVED, f"{_REFUSED}{because}")


def outcome_unanswered(why: str, code: ErrorCode = ErrorCode.CANCELLED) -> ToolOutcome:
    """The outcome of a call whose client has not answered it, for this reason: it may have been run."""
    return ToolOutcome.failure(CallState.UNKNOWN, code, f"{why} before the client answered this call")


_REFUSED = "the user did not approve this call, so it was not run"


def refusal_in(outcome: ToolOutcome) -> str:
    """The message of a call that a person refused; "" for every other outcome, such as a question that expired."""
    error = outcome.error
    refused = error is not None and error.code is ErrorCode.NOT_APPROVED and error.message.startswith(_REFUSED)
    return error.message if error is not None and refused else ""


# --- Results ---


class WholeResult(msgspec.Struct, frozen=True):
    """The full text of a shortened result. Offsets refer to `for_model`; `for_user` is None when it is the same."""

    for_model: str
    for_user: str | None = None

    @property
    def user_text(self) -> str:
        """The text that the user may see."""
        return self.for_model if self.for_user is None else self.for_user


# --- How long a call took that no worker ran ---


def timed(outcome: ToolOutcome, correlation_id: str) -> ToolOutcome:
    """An outcome that no worker measured, with the time from the model's call until now, in milliseconds.

    The id of a call has the time at which it was made, so that an engine that adopts the turn knows it too.
    """
    if outcome.duration_ms or outcome.attempts:
        return outcome
    made_at = uuid.UUID(correlation_id).int >> 80  # `new_id` of the contract
    return msgspec.structs.replace(outcome, duration_ms=max(0, time.time_ns() // 1_000_000 - made_at))
