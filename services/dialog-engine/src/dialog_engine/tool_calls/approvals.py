"""The rules of approvals: which calls wait for a person, and what becomes of what the person says. Pure."""

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
from dialog_engine.tool_calls.arguments import read_arguments
from dialog_engine.tool_calls.planning import check
from dialog_engine.tool_calls.questions import Approve, Decision, Given, Question, Refuse
from plugins_contract.catalog import ApprovalPolicy, ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolError, ToolOutcome

MAX_REASON = 1_000
"""Characters of a reason for refusing."""


@dataclass(frozen=True, slots=True)
class Run:
    """The call is to be run, with these arguments."""

    decision: Decision
    tool: ToolEntry
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The call is answered without being run. `error` is for the person whose decision came too late."""

    decision: Decision
    outcome: ToolOutcome
    error: ApprovalError | None = None


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The tool has changed: what was approved is not what would be run."""

    question: Question
    error: ApprovalError


@dataclass(frozen=True, slots=True)
class Reject:
    """This cannot be done; the question stands."""

    error: ApprovalError


Judgement = Run | Answer | AskAgain | Reject


def question_for(tool: ToolEntry, arguments: dict[str, Any], now: int, timeout_ms: int) -> Question | None:
    """What is to be asked before `tool` is run with `arguments`; None when nothing is."""
    if tool.approval is ApprovalPolicy.NEVER:
        return None
    return _question(tool, arguments, now, timeout_ms)


def judge(question: Question, given: Given, tool: ToolEntry | ToolError, now: int) -> Judgement:
    """What becomes of the question when `given` comes at `now`; `tool` is what the catalog has by now."""
    if now >= question.expires_at:
        return expired(question, now)
    match given:
        case Refuse(reason):
            return Answer(Decision(status=ApprovalStatus.REFUSED, at=now, reason=reason), _refused(reason))
        case Approve(seen, arguments):
            return _approved(question, seen, arguments, tool, now)


def expired(question: Question, now: int) -> Answer:
    """Nobody has decided in time."""
    seconds = (question.expires_at - question.asked_at) // 1000
    message = f"nobody approved this call within {seconds} seconds, so it was not run"
    outcome = ToolOutcome.failure(CallState.FAILED, ErrorCode.NOT_APPROVED, message)
    error = ApprovalExpiredError("this approval has expired: the call was answered as not approved")
    return Answer(Decision(status=ApprovalStatus.EXPIRED, at=now), outcome, error)


def stopped() -> ToolOutcome:
    """The outcome of a call whose turn was stopped while it waited."""
    message = "the turn was stopped while this call waited for approval: it was not run"
    return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, message)


def question_hash(tool: ToolEntry, arguments: Mapping[str, Any]) -> str:
    """Changes when what a person is asked about does: the arguments, or the tool as the catalog describes it."""
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
        title=tool.title,
        policy=tool.approval,
        arguments=arguments,
        hash=question_hash(tool, arguments),
        asked_at=now,
        expires_at=now + timeout_ms,
    )


def _approved(
    question: Question, seen: str, arguments: dict[str, Any] | None, tool: ToolEntry | ToolError, now: int
) -> Judgement:
    if seen != question.hash:
        return Reject(ApprovalStaleError("this is not what is asked now: look at the call again"))
    if isinstance(tool, ToolError):
        return Reject(ToolChangedError(f"it cannot be run now: {tool.message}"))
    if question_hash(tool, question.arguments) != question.hash:
        again = _question(tool, question.arguments, now, question.expires_at - question.asked_at)
        if tool.approval is ApprovalPolicy.NEVER:
            again = msgspec.structs.replace(again, policy=question.policy)  # it was asked, so it needs an answer
        return AskAgain(again, ToolChangedError("the tool has changed since this was asked, so it is asked anew"))
    edited = arguments is not None and arguments != question.arguments
    wanted = arguments if arguments is not None and edited else question.arguments
    if complaint := check(tool, wanted):
        field, _, message = complaint.partition(": ")
        return Reject(ArgumentsRefusedError(field, message or complaint))
    status = ApprovalStatus.EDITED if edited else ApprovalStatus.APPROVED
    return Run(Decision(status=status, at=now, arguments=wanted if edited else None), tool, wanted)


def _refused(reason: str) -> ToolOutcome:
    because = f", for this reason: {reason}" if reason else ""
    message = f"the user did not approve this call, so it was not run{because}"
    return ToolOutcome.failure(CallState.FAILED, ErrorCode.NOT_APPROVED, message)


def read_edited(text: str) -> dict[str, Any]:
    """Arguments as a person wrote them.

    Raises:
        ArgumentsRefusedError: they are no JSON object, too long or too deep.
    """
    arguments = read_arguments(text)
    if isinstance(arguments, str):
        raise ArgumentsRefusedError("", arguments)
    return arguments
