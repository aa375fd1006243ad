"""The rules of approvals as tables: which calls need one, and what follows from each decision."""

from typing import Any

import msgspec
import pytest

from dialog_engine.errors import ApprovalExpiredError, ApprovalStaleError, ArgumentsRefusedError, ToolChangedError
from dialog_engine.model import ApprovalStatus, ToolCall, ToolStatus
from dialog_engine.tool_calls.approvals.rules import (
    AnswerCall,
    AskAgain,
    RunCall,
    StaysOpen,
    judge,
    question_for,
    question_hash,
    stopped,
)
from dialog_engine.tool_calls.results.steps import status_of
from dialog_engine.tool_calls.results.texts import for_model
from dialog_engine.tool_calls.values import Approve, Asked, Decision, Given, Question, Refuse
from plugins_contract.catalog import ApprovalPolicy, ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import ToolError
from tests.marks import promise
from tests.support.fakes.worker import tool

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL = tool("files__delete", SCHEMA, description="Deletes", approval=ApprovalPolicy.DESTRUCTIVE)
ARGUMENTS = {"path": "/a"}
NOW, MINUTE = 1_000_000, 60_000


def asked(entry: ToolEntry = TOOL) -> Question:
    return question_for(entry, ARGUMENTS, NOW, MINUTE)


QUESTION = asked()
APPROVE = Approve(QUESTION.hash)


def changed(**fields: Any) -> ToolEntry:
    return msgspec.structs.replace(TOOL, **fields)


@pytest.mark.parametrize("policy", [each for each in ApprovalPolicy if each is not ApprovalPolicy.NEVER])
def test_a_question_names_its_policy_and_when_it_expires(policy: ApprovalPolicy) -> None:
    question = question_for(changed(approval=policy), ARGUMENTS, NOW, MINUTE)

    assert (question.policy, question.expires_at) == (policy, NOW + MINUTE)


def test_an_approved_call_is_run_with_the_arguments_of_the_question_or_edited_ones() -> None:
    edited = {"path": "/b"}
    approved = RunCall(Decision(status=ApprovalStatus.APPROVED, at=NOW), TOOL, ARGUMENTS)

    assert judge(QUESTION, APPROVE, TOOL, NOW) == approved
    assert judge(QUESTION, Approve(QUESTION.hash, dict(ARGUMENTS)), TOOL, NOW) == approved, "sent back unchanged"
    assert judge(QUESTION, Approve(QUESTION.hash, edited), TOOL, NOW) == RunCall(
        Decision(status=ApprovalStatus.EDITED, at=NOW, arguments=edited), TOOL, edited
    )


GONE = ToolError(ErrorCode.TOOL_NOT_FOUND, "gone")


@pytest.mark.parametrize(
    ("given", "entry", "error", "field"),
    [
        (Approve(QUESTION.hash, {"path": 5}), TOOL, ArgumentsRefusedError, "path"),
        (Approve(QUESTION.hash, {}), TOOL, ArgumentsRefusedError, "arguments"),
        (Approve("another"), TOOL, ApprovalStaleError, None),
        (APPROVE, GONE, ToolChangedError, None),
    ],
    ids=["edited against the schema", "edited, incomplete", "approves something else", "the tool is gone"],
)
def test_a_decision_that_does_not_fit_leaves_the_question_open_and_a_wrong_field_is_named(
    given: Given, entry: ToolEntry | ToolError, error: type[Exception], field: str | None
) -> None:
    refused = judge(QUESTION, given, entry, NOW)

    assert isinstance(refused, StaysOpen)
    assert (type(refused.error), getattr(refused.error, "field", None)) == (error, field)


@promise("an approval is bound to its arguments, given once, and expires")
@pytest.mark.parametrize(
    "entry",
    [
        changed(description="Deletes more"),
        changed(input_schema={"type": "object"}),
        changed(annotations={"destructiveHint": True}),
        changed(execution_class=ExecutionClass.REPEATABLE),
        changed(tool="remove"),
        changed(approval=ApprovalPolicy.NEVER, description="Harmless, it says"),
    ],
    ids=["description", "schema", "annotations", "class", "tool", "policy"],
)
def test_a_tool_that_has_changed_needs_a_new_question(entry: ToolEntry) -> None:
    again = judge(QUESTION, APPROVE, entry, NOW + 1)

    assert isinstance(again, AskAgain)
    assert isinstance(again.error, ToolChangedError)
    assert again.question.hash == question_hash(entry, ARGUMENTS) != QUESTION.hash
    assert again.question.policy is not ApprovalPolicy.NEVER
    assert again.question.expires_at == NOW + 1 + MINUTE
    assert isinstance(judge(again.question, APPROVE, entry, NOW + 2), StaysOpen), "the old hash approves nothing"
    assert isinstance(judge(again.question, Approve(again.question.hash), entry, NOW + 2), RunCall)


def test_properties_outside_the_hash_may_change() -> None:
    assert isinstance(judge(QUESTION, APPROVE, changed(timeout_ms=1), NOW), RunCall)


@promise("an approval is bound to its arguments, given once, and expires")
@pytest.mark.parametrize("given", [APPROVE, Approve(QUESTION.hash, {"path": "/b"}), Refuse("no")])
def test_decisions_after_the_timeout_are_refused(given: Given) -> None:
    answer = judge(QUESTION, given, TOOL, QUESTION.expires_at)

    assert isinstance(answer, AnswerCall)
    assert answer.decision.status is ApprovalStatus.EXPIRED
    assert isinstance(answer.error, ApprovalExpiredError)
    assert status_of(answer.outcome) is ToolStatus.REFUSED
    assert isinstance(judge(QUESTION, APPROVE, TOOL, QUESTION.expires_at - 1), RunCall)


def test_a_refusal_needs_neither_hash_nor_tool_and_its_reason_reaches_the_model() -> None:
    answer = judge(QUESTION, Refuse("not on a Friday"), GONE, NOW)

    assert isinstance(answer, AnswerCall)
    assert answer.decision == Decision(status=ApprovalStatus.REFUSED, at=NOW, reason="not on a Friday")
    assert answer.error is None
    assert status_of(answer.outcome) is ToolStatus.REFUSED
    said = for_model(answer.outcome)
    assert said.startswith("Error NOT_APPROVED")
    assert "not on a Friday" in said


def test_a_call_that_was_stopped_while_it_waited_was_not_run_unless_its_client_runs_it() -> None:
    call = ToolCall("call_1", "id", "files__delete", "{}")
    never_run = stopped(Asked(call, QUESTION))
    assert status_of(never_run) is ToolStatus.CANCELLED
    assert "not run" in for_model(never_run)
    of_client = stopped(Asked(call, msgspec.structs.replace(QUESTION, by_client=True)))
    assert status_of(of_client) is ToolStatus.UNKNOWN, "its client may have run it"


EDITED = Decision(status=ApprovalStatus.EDITED, at=1, arguments={"x": 1})


@pytest.mark.parametrize(
    ("decision", "given", "same"),
    [
        (Decision(status=ApprovalStatus.APPROVED, at=1), Approve("h"), True),
        (Decision(status=ApprovalStatus.APPROVED, at=1), Approve("h", {"x": 1}), False),
        (Decision(status=ApprovalStatus.APPROVED, at=1), Refuse(), False),
        (EDITED, Approve("h", {"x": 1}), True),
        (EDITED, Approve("h", {"x": 2}), False),
        (EDITED, Approve("h"), False),
        (Decision(status=ApprovalStatus.REFUSED, at=1, reason="no"), Refuse("no"), True),
        (Decision(status=ApprovalStatus.REFUSED, at=1, reason="no"), Refuse("never"), False),
        (Decision(status=ApprovalStatus.EXPIRED, at=1), Refuse(), False),
        (Decision(status=ApprovalStatus.EXPIRED, at=1), Approve("h"), False),
    ],
)
def test_a_repeated_decision_is_recognised(decision: Decision, given: Given, same: bool) -> None:
    assert decision.same_as(given) is same
