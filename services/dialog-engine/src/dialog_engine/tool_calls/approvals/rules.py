"""The rules of approvals: which calls need a person's approval, and what follows from a decision. Pure.

The rules are here. `approvals/pending.py` has the calls of running turns that wait, `chat/approvals.py` finds the call
that a person decides on, `storage/approvals.py` stores questions and decisions, and the endpoint is in `http`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dialog_engine.errors import (
    ApprovalError,
    ApprovalExpiredError,
    ApprovalStaleError,
    ArgumentsRefusedError,
    ToolChangedError,
)
from dialog_engine.model import ApprovalStatus, ToolCall
from dialog_engine.tool_calls.arguments import read_arguments, validate
from plugins_contract.catalog import ApprovalPolicy, ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallState, ToolError, ToolOutcome


class Question(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The question that is put to a person about a call. Times are Unix milliseconds on the clock of Redis.

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


class Decision(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A decision by a person, or by the timeout. `arguments` are set when the person edited them.

    `key_id` names the person's credential, for the audit.
    """

    status: ApprovalStatus
    at: int
    reason: str = ""
    arguments: dict[str, Any] | None = None
    key_id: str = ""

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
    """A committed call that waits for its approval. It has no request yet, so that no worker can run it."""

    call: ToolCall
    question: Question


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
    """What is committed of a call that needed approval.

    `question` is the current one. `request` is set when the call is approved, `outcome` when it has its outcome.
    """

    correlation_id: str
    question: Question
    decision: Decision | None
    outcome: ToolOutcome | None
    request: ToolCallRequested | None


@dataclass(frozen=True, slots=True)
class Approve:
    """A person approves the question with this hash, with `arguments` in place of the model's if they are set."""

    hash: str
    arguments: dict[str, Any] | None = None
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class Refuse:
    """A person refuses. The model reads the reason."""

    reason: str = ""
    key_id: str = ""


Given = Approve | Refuse


MAX_REASON = 1_000
"""Characters of the reason for a refusal."""


@dataclass(frozen=True, slots=True)
class Run:
    """The call is run with these arguments."""

    decision: Decision
    tool: ToolEntry
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The call gets its outcome without being run. `error` is for a person whose decision came too late."""

    decision: Decision
    outcome: ToolOutcome
    error: ApprovalError | None = None


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The tool has changed, so that the person approved something else. The new question is put."""

    question: Question
    error: ApprovalError


@dataclass(frozen=True, slots=True)
class Reject:
    """The decision is refused, and the question stays open."""

    error: ApprovalError


Judgement = Run | Answer | AskAgain | Reject


def question_for(tool: ToolEntry, arguments: dict[str, Any], now: int, timeout_ms: int) -> Question | None:
    """The question to put before `tool` is run with `arguments`; None if it needs no approval."""
    if tool.approval is ApprovalPolicy.NEVER:
        return None
    return _question(tool, arguments, now, timeout_ms)


def judge(question: Question, given: Given, tool: ToolEntry | ToolError, now: int) -> Judgement:
    """What follows when `given` arrives at `now`. `tool` is the tool as the catalog has it at that time."""
    if now >= question.expires_at:
        return expired(question, now)
    match given:
        case Refuse(reason, key_id):
            decision = Decision(status=ApprovalStatus.REFUSED, at=now, reason=reason, key_id=key_id)
            return Answer(decision, _refused(reason))
        case Approve() as approve:
            return _approved(question, approve, tool, now)


def expired(question: Question, now: int) -> Answer:
    """What follows when the question was not decided in time."""
    seconds = (question.expires_at - question.asked_at) // 1000
    message = f"this call was not approved within {seconds} seconds, so it was not run"
    outcome = ToolOutcome.failure(CallState.FAILED, ErrorCode.NOT_APPROVED, message)
    error = ApprovalExpiredError("the time for this approval is over: the call was answered as not approved")
    return Answer(Decision(status=ApprovalStatus.EXPIRED, at=now), outcome, error)


def stopped(why: str = "the turn was stopped") -> ToolOutcome:
    """The outcome of a call whose turn has ended, for this reason, while the call waited for approval."""
    message = f"{why} while this call waited for approval: it was not run"
    return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, message)


def question_hash(tool: ToolEntry, arguments: Mapping[str, Any]) -> str:
    """A hash of the arguments and of the tool as the catalog describes it."""
    bound = [
        tool.server,
        tool.tool,
        tool.title,
        tool.description,
        tool.input_schema,
        tool.annotations,
        tool.execution_class,
        arguments,
    ]
    return hashlib.sha256(msgspec.json.encode(bound, order="deterministic")).hexdigest()[:32]


def _question(tool: ToolEntry, arguments: dict[str, Any], now: int, timeout_ms: int) -> Question:
    return Question(
        server=tool.server,
        tool=tool.tool,
        title=tool.title,
        policy=tool.approval,
        arguments=arguments,
        hash=question_hash(tool, arguments),
        asked_at=now,
        expires_at=now + timeout_ms,
    )


def _approved(question: Question, approve: Approve, tool: ToolEntry | ToolError, now: int) -> Judgement:
    arguments = approve.arguments
    if approve.hash != question.hash:
        return Reject(
            ApprovalStaleError("the question about this call has changed: look at the new question, and decide again")
        )
    if isinstance(tool, ToolError):
        return Reject(ToolChangedError(f"the call cannot be run now: {tool.message}"))
    if question_hash(tool, question.arguments) != question.hash:
        again = _question(tool, question.arguments, now, question.expires_at - question.asked_at)
        if tool.approval is ApprovalPolicy.NEVER:
            again = msgspec.structs.replace(again, policy=question.policy)  # a question that was put stays one
        return AskAgain(
            again,
            ToolChangedError("the tool has changed since you were asked: look at the new question, and decide again"),
        )
    edited = arguments is not None and arguments != question.arguments
    wanted = arguments if arguments is not None and edited else question.arguments
    if problem := validate(tool, wanted):
        field, _, message = problem.partition(": ")
        return Reject(ArgumentsRefusedError(field, message or problem))
    status = ApprovalStatus.EDITED if edited else ApprovalStatus.APPROVED
    decision = Decision(status=status, at=now, arguments=wanted if edited else None, key_id=approve.key_id)
    return Run(decision, tool, wanted)


def _refused(reason: str) -> ToolOutcome:
    because = f", for this reason: {reason}" if reason else ""
    return ToolOutcome.failure(CallState.FAILED, ErrorCode.NOT_APPROVED, f"{_REFUSED}{because}")


_REFUSED = "the user did not approve this call, so it was not run"


def refusal_in(outcome: ToolOutcome) -> str:
    """The message of a call that a person refused; "" for every other outcome, such as a question that expired."""
    error = outcome.error
    refused = error is not None and error.code is ErrorCode.NOT_APPROVED and error.message.startswith(_REFUSED)
    return error.message if error is not None and refused else ""


def read_edited(text: str) -> dict[str, Any]:
    """Parse the arguments that a person wrote.

    Raises:
        ArgumentsRefusedError: they are no JSON object, too long or too deep.
    """
    arguments = read_arguments(text)
    if isinstance(arguments, str):
        raise ArgumentsRefusedError("", arguments)
    return arguments
