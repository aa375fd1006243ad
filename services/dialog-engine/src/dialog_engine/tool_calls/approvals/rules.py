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
from dialog_engine.model import ApprovalStatus
from dialog_engine.tool_calls.arguments import read_arguments, validate
from dialog_engine.tool_calls.values import (
    Approve,
    Asked,
    Decision,
    Given,
    Question,
    Refuse,
    outcome_of_refusal,
    outcome_unanswered,
)
from plugins_contract.catalog import ApprovalPolicy, ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolError, ToolOutcome

MAX_REASON = 1_000
"""Characters of the reason for a refusal."""


@dataclass(frozen=True, slots=True)
class RunCall:
    """The call is run with these arguments."""

    decision: Decision
    tool: ToolEntry
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerCall:
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
class StaysOpen:
    """The decision is refused, and the question stays open."""

    error: ApprovalError


Judgement = RunCall | AnswerCall | AskAgain | StaysOpen


def question_for(
    tool: ToolEntry, arguments: dict[str, Any], now: int, timeout_ms: int, *, by_client: bool = False
) -> Question:
    """The question to put before `tool`, which needs approval, is run with `arguments`; or to its client."""
    return Question(
        server=tool.server,
        tool=tool.tool,
        title=tool.title,
        policy=tool.approval,
        arguments=arguments,
        hash=question_hash(tool, arguments),
        asked_at=now,
        expires_at=now + timeout_ms,
        by_client=by_client,
    )


def judge(question: Question, given: Given, tool: ToolEntry | ToolError, now: int) -> Judgement:
    """What follows when `given` arrives at `now`. `tool` is the tool as the catalog has it at that time."""
    if now >= question.expires_at:
        return expired(question, now)
    match given:
        case Refuse(reason, key_id):
            decision = Decision(status=ApprovalStatus.REFUSED, at=now, reason=reason, key_id=key_id)
            return AnswerCall(decision, outcome_of_refusal(reason))
        case Approve() as approve:
            return _approved(question, approve, tool, now)


def expired(question: Question, now: int) -> AnswerCall:
    """What follows when the question was not decided in time."""
    seconds = (question.expires_at - question.asked_at) // 1000
    if question.by_client:
        unanswered = outcome_unanswered(f"{seconds} seconds passed", ErrorCode.TIMEOUT)
        return AnswerCall(Decision(status=ApprovalStatus.EXPIRED, at=now), unanswered)
    message = f"this call was not approved within {seconds} seconds, so it was not run"
    outcome = ToolOutcome.failure(CallState.FAILED, ErrorCode.NOT_APPROVED, message)
    error = ApprovalExpiredError("the time for this approval is over: the call was answered as not approved")
    return AnswerCall(Decision(status=ApprovalStatus.EXPIRED, at=now), outcome, error)


STOPPED = "the turn was stopped"
"""Why a turn has ended that its user stopped."""


def stopped(asked: Asked, why: str = STOPPED) -> ToolOutcome:
    """The outcome of a call whose turn has ended, for this reason, while the call waited."""
    if asked.question.by_client:
        return outcome_unanswered(why)
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


def _approved(question: Question, approve: Approve, tool: ToolEntry | ToolError, now: int) -> Judgement:
    arguments = approve.arguments
    if approve.hash != question.hash:
        return StaysOpen(
            ApprovalStaleError("the question about this call has changed: look at the new question, and decide again")
        )
    if isinstance(tool, ToolError):
        return StaysOpen(ToolChangedError(f"the call cannot be run now: {tool.message}"))
    if question_hash(tool, question.arguments) != question.hash:
        again = question_for(tool, question.arguments, now, question.expires_at - question.asked_at)
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
        return StaysOpen(ArgumentsRefusedError(field, message or problem))
    status = ApprovalStatus.EDITED if edited else ApprovalStatus.APPROVED
    decision = Decision(status=status, at=now, arguments=wanted if edited else None, key_id=approve.key_id)
    return RunCall(decision, tool, wanted)


def read_edited(text: str) -> dict[str, Any]:
    """Parse the arguments that a person wrote.

    Raises:
        ArgumentsRefusedError: they are no JSON object, too long or too deep.
    """
    arguments = read_arguments(text)
    if isinstance(arguments, str):
        raise ArgumentsRefusedError("", arguments)
    return arguments
